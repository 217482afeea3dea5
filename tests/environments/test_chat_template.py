"""Chat templates render as transformers renders them, and can do nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments.chat_template import ChatTemplate, load_chat_template
from schemas import EnvironmentFault, ModelError

MESSAGES = [
    {"role": "system", "content": "be <b>brief</b>"},
    {"role": "user", "content": "é?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, "ü"]}}}]},
    {"role": "tool", "content": "2"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<a & b>", "parameters": {"type": "object"}}}]
TEMPLATES = [
    # Blocks on lines of their own leave no line behind; loop controls and marks of what was generated are known.
    """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- continue %}
    {%- endif %}
    {% generation %}{{ message.role }}: {{ message.content | trim }}{% endgeneration %}
    {% if message.tool_calls %}
    {{ message.tool_calls[0].function.arguments | tojson }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}assistant:{% endif %}""",
    "{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}{% endfor %}{% else %}none{% endif %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_text_is_that_of_transformers(source: str, tools: Any) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for prompt in (True, False):
        theirs, _ = render_jinja_template(
            [MESSAGES], tools=tools, chat_template=source, add_generation_prompt=prompt, bos_token="<s>"
        )
        ours = ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, tools=tools, add_generation_prompt=prompt)
        assert [ours] == theirs


def test_the_date_stays_that_of_the_start() -> None:
    template = ChatTemplate("{{ strftime_now('%H:%M:%S.%f') }}")
    assert template.render([]) == template.render([])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
        ("{{ messages[0].content.nothing.at_all }}", "UndefinedError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages.__class__.__subclasses__() }}", "SecurityError"),
    ],
)
def test_a_template_that_refuses_is_the_environments_fault(source: str, problem: str) -> None:
    with pytest.raises(EnvironmentFault, match=problem):
        ChatTemplate(source).render(MESSAGES)


def test_a_template_that_is_none_is_a_damaged_model() -> None:
    with pytest.raises(ModelError, match="chat template cannot be read"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "one{{ eos_token }}", "eos_token": {"content": "<e>"}}}, "one<e>"),
        ({"tokenizer_config.json": {"chat_template": "one"}, "chat_template.jinja": "two"}, "two"),
        (
            {"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "t"},
                                                         {"name": "default", "template": "d"}]}},
            "d",
        ),
    ],
)  # fmt: skip
def test_the_template_comes_from_the_models_directory(tmp_path: Path, files: dict[str, Any], text: str | None) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    template = load_chat_template(tmp_path)
    assert (None if template is None else template.render([])) == text


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"chat_template": [{"name": "default"}]}, "where an object with 'template' should be"),
        ({"chat_template": ["default"]}, "where an object with 'name' should be"),
        ({"chat_template": "one", "eos_token": {"text": "<e>"}}, "where an object with 'content' should be"),
    ],
)
def test_what_a_tokenizer_configuration_lacks_is_named(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match=problem):
        load_chat_template(tmp_path)


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(ModelError, match=r"chat_template.jinja is not UTF-8 text \(byte 2\): copy the model again"):
        load_chat_template(tmp_path)


def test_a_damaged_tokenizer_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer_config.json is not a JSON object"):
        load_chat_template(tmp_path)
