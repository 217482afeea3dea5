"""Messages to text by the chat template that a model directory brings, rendered with jinja2 alone.

``transformers`` renders templates in the same way, but its import takes seconds. The template comes from the model's
directory, so it runs in jinja2's sandbox: it can neither change what it is given nor reach Python's internals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas import EnvironmentFault, ModelError

Message = Mapping[str, Any]
"""``role`` and ``content``, and whatever else the template reads (``tool_calls``, ``name``)."""


class ChatTemplate:
    """The chat template of one model."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        """``tokens``: special tokens that templates name, such as ``bos_token``. Raises ModelError for no template."""
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template cannot be read ({error}): copy the model again") from None
        self._tokens = dict(tokens or {})
        # Some templates tell today's date. It stays that of the start, or midnight would break a conversation's prefix.
        self._now = datetime.now()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """``messages`` as text that ends where the assistant's next reply begins, or without ``add_generation_prompt``
        after the last of them.

        ``tools``: JSON schemas in the form {"type": "function", "function": {...}}.
        Raises EnvironmentFault where the template refuses the messages.
        """
        try:
            return self._template.render(
                **self._tokens,
                messages=[dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=self._now.strftime,
            )
        except Exception as error:  # a template may fail in as many ways as a program
            raise EnvironmentFault(
                f"the model's chat template refuses the messages ({type(error).__name__}: {error}): give messages "
                "with the roles and fields that it knows, or a model with another template"
            ) from None


def load_chat_template(model_dir: Path | str) -> ChatTemplate | None:
    """The template of ``model_dir``: chat_template.jinja, or "chat_template" of tokenizer_config.json.

    None where the model brings none. Raises ModelError where it cannot be read.
    """
    folder = Path(model_dir)
    settings = read_json(folder / "tokenizer_config.json")
    source = _source(folder, settings)
    tokens = {name: _text(settings[name]) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
              if settings.get(name) is not None}  # fmt: skip
    return None if source is None else ChatTemplate(source, tokens)


def _source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{path} is not UTF-8 text (byte {error.start}): copy the model again") from None
    named = settings.get("chat_template")
    if isinstance(named, list):  # several by name; older directories keep one for tools beside the default
        named = next((_field(each, "template") for each in named if _field(each, "name") == "default"), None)
    return named if isinstance(named, str) else None


def _text(token: Any) -> str:
    """Of a special token: text, or an object that holds it."""
    return str(_field(token, "content") if isinstance(token, dict) else token)


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ModelError(f"tokenizer_config.json has {str(value)[:60]!r} where an object with {name!r} should be: "
                         "copy the model again")  # fmt: skip
    return value[name]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of the model; empty where there is no such file. Raises ModelError for anything else."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is not a JSON object ({error}): copy the model again") from None


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks in some templates what an assistant says; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
)
_ENVIRONMENT.filters["tojson"] = _tojson
_ENVIRONMENT.globals["raise_exception"] = _raise_exception
