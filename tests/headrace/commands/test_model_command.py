from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save

from bus import FileWeights
from headrace.folder import RunFolder
from schemas import Weights
from tests import examples
from tests.headrace import recorded
from tests.headrace.conftest import Headrace


@pytest.fixture
def copied(ended: RunFolder, tmp_path: Path) -> RunFolder:
    """The ended run where a test may damage it."""
    shutil.copytree(ended.path, tmp_path / "runs" / "demo")
    return RunFolder(tmp_path / "runs" / "demo")


def test_newest_weights_are_exported_with_configuration_and_tokenizer(
    ended: RunFolder, headrace: Headrace, tmp_path: Path
) -> None:
    told = headrace("model", "export", "demo", tmp_path / "out", "--dir", ended.path.parent, "--json")
    assert told.code == 0
    assert msgspec.json.decode(told.out)["version"] == 3
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == recorded.payload_of(3)
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_given_version_is_exported(ended: RunFolder, headrace: Headrace, tmp_path: Path) -> None:
    told = headrace("model", "export", "demo", tmp_path / "out", "--dir", ended.path.parent, "--version", "1")
    assert told.code == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == recorded.payload_of(1)


@pytest.mark.parametrize(("version", "never"), [(0, ""), (9, " (and was never announced)")])
def test_version_that_is_gone_is_told_with_those_that_are_not(
    version: int, never: str, ended: RunFolder, headrace: Headrace, tmp_path: Path
) -> None:
    told = headrace("model", "export", "demo", tmp_path / "out", "--dir", ended.path.parent, "--version", str(version))
    assert told.code == 1
    assert f"weights {version} of run 'demo' are not in the store{never}; it has 1, 2, 3" in told.err
    assert list(tmp_path.iterdir()) == []


def test_folder_that_holds_something_is_left_alone(ended: RunFolder, headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    told = headrace("model", "export", "demo", tmp_path, "--dir", ended.path.parent)
    assert told.code == 1
    assert "exists already" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_damaged_weights_are_not_exported(copied: RunFolder, headrace: Headrace, tmp_path: Path) -> None:
    sha256 = asyncio.run(FileWeights(copied.weights, 3).versions())[3]
    (copied.weights / sha256 / "model.safetensors").write_bytes(b"weights X")
    told = headrace("model", "export", "demo", tmp_path / "out", "--dir", copied.path.parent)
    assert told.code == 1
    assert "is damaged" in told.err
    assert not (tmp_path / "out").exists()


def test_weights_that_the_log_does_not_know_are_not_exported(
    copied: RunFolder, headrace: Headrace, tmp_path: Path
) -> None:
    asyncio.run(FileWeights(copied.weights, 0).put(b"made without an announcement", version=3))
    told = headrace("model", "export", "demo", tmp_path / "out", "--dir", copied.path.parent)
    assert told.code == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == recorded.payload_of(2)


def test_model_that_the_run_began_with_is_needed(copied: RunFolder, headrace: Headrace, tmp_path: Path) -> None:
    config = copied.path / "config.json"
    stored = json.loads(config.read_text())
    stored["model"]["path"] = str(tmp_path / "gone")
    config.write_text(json.dumps(stored))
    told = headrace("model", "export", "demo", tmp_path / "out", "--dir", copied.path.parent)
    assert told.code == 1
    assert f"{tmp_path / 'gone'} is gone" in told.err


def test_older_name_of_the_type_is_replaced_too(tmp_path: Path) -> None:
    from headrace.export import _set_dtype

    path = tmp_path / "config.json"
    path.write_text('{"torch_dtype": "bfloat16"}')
    _set_dtype(path, "float32")
    assert json.loads(path.read_text()) == {"torch_dtype": "float32", "dtype": "float32"}


def test_mistakes_with_models_are_one_line(headrace: Headrace, tmp_path: Path) -> None:
    for words in (
        ("fetch", "smolm2", tmp_path / "out"),
        ("import", tmp_path / "none", tmp_path / "out"),
        ("tiny", tmp_path / "out", "--environment", "revrse"),
    ):
        told = headrace("model", *words)
        assert told.code == 1, words
        assert told.err.startswith("headrace model: ")
        assert len(told.err.splitlines()) == 1


def qwen3(folder: Path) -> dict[str, np.ndarray]:
    """A Qwen3 directory of random weights, made with transformers; the weights are returned as well."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    model = Qwen3ForCausalLM(Qwen3Config(**shape))  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return {name: value.numpy() for name, value in model.state_dict().items() if name != "lm_head.weight"}


def test_transformers_loads_what_was_exported(headrace: Headrace, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recorded.make_model(tmp_path / "models" / "tiny")
    trained = {name: value + 1.0 for name, value in qwen3(tmp_path / "models" / "tiny").items()}
    folder = recorded.make_run(tmp_path)
    payload = save(trained, metadata={"format": "pt"})
    stored = asyncio.run(FileWeights(folder.weights, 0).put(payload, version=4))
    recorded.add(folder, [weights_event(stored)])
    told = headrace("model", "export", "demo", tmp_path / "out", "--dir", tmp_path)
    assert told.code == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, value in trained.items():
        assert np.array_equal(model.state_dict()[name].numpy(), value), name
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("abc") == [13, 14, 15]


def weights_event(stored: msgspec.Struct) -> Weights:
    return examples.weights(run="demo", version=4, dtype="float32", **msgspec.structs.asdict(stored))
