"""Tokenizers of model directories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from environments import load_tokenizer
from schemas import EnvironmentFault, ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Letters a to d, an end token, an unknown token, and a start token that it adds where it is let."""
    tokens = ["a", "b", "c", "d", "<end>", "<unk>", "<start>"]
    tokenizer = tokenizers.Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>", "<start>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<start> $A", special_tokens=[("<start>", 6)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "generation_config.json", {"eos_token_id": 4})
    return tmp_path


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_text_is_encoded_without_special_tokens(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("dab") == [3, 0, 1]
    assert tokenizer.decode([3, 0, 1]) == "dab"


def test_special_tokens_stay_visible_in_text(folder: Path) -> None:
    assert load_tokenizer(folder).decode([0, 4, 1]) == "a<end>b"


def test_text_outside_the_vocabulary_is_named(folder: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no token for 'X' in 'abX'"):
        load_tokenizer(folder).encode("abX")


@pytest.mark.parametrize(
    ("files", "end_id"),
    [
        ({"generation_config.json": {"eos_token_id": 3}, "tokenizer_config.json": {"eos_token": "a"}}, 3),
        ({"generation_config.json": {"eos_token_id": [2, 4]}}, 2),
        ({"generation_config.json": {}, "tokenizer_config.json": {"eos_token": "<end>"}}, 4),
        ({"generation_config.json": {}, "tokenizer_config.json": {"eos_token": {"content": "b"}}}, 1),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 0}}, 0),
    ],
)
def test_end_token_comes_from_the_models_own_files(folder: Path, files: dict[str, Any], end_id: int) -> None:
    for name, content in files.items():
        write(folder, name, content)
    assert load_tokenizer(folder).end_id == end_id


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("generation_config.json", "{}", "names no end token"),
        ("generation_config.json", '{"eos_token_id": 99}', "end token 99 is not in the vocabulary"),
        ("generation_config.json", "[", "not a JSON object"),
        ("tokenizer.json", "{}", "not a tokenizer"),
    ],
)
def test_damaged_file_is_named(folder: Path, name: str, text: str, problem: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=problem):
        load_tokenizer(folder)


def test_missing_tokenizer_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist: .*headrace model tiny"):
        load_tokenizer(tmp_path)


def test_no_engine_is_loaded_for_it(folder: Path) -> None:
    program = (
        "import sys; from environments import load_tokenizer; "
        f"load_tokenizer({str(folder)!r}); print({{'torch', 'transformers', 'vllm'}} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


CHAT = "{% for m in messages %}{{ m.content }}<start>{% endfor %}"


@pytest.mark.parametrize(
    ("ends", "template", "stop_ids"),
    [
        (4, None, [4]),
        ([4, 3], None, [4, 3]),
        (4, CHAT, [4, 6]),
        ([6, 4], CHAT, [4, 6]),
        (4, "{% for m in messages %}{{ m.content }}d{% endfor %}", [4]),
        (4, "{{ raise_exception('nobody') }}", [4]),
    ],
)
def test_a_conversation_ends_at_what_the_template_writes_too(
    folder: Path, ends: Any, template: str | None, stop_ids: list[int]
) -> None:
    write(folder, "generation_config.json", {"eos_token_id": ends})
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert list(tokenizer.chat_stop_ids) == stop_ids
    assert (tokenizer.chat_template is None) == (template is None)
