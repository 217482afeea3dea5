"""Models from GGUF files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from environments import load_tokenizer
from headrace.models import check_model, import_model
from headrace.models.gguf_file import GgufFile
from schemas import ModelError
from tests.headrace.models.gguf_files import KINDS, TOKENS, write_gguf

SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS) + 3, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-4, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "initializer_range": 0.15,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "llama untied": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3moe": {"tie_word_embeddings": False, "num_experts": 4, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 32, "norm_topk_prob": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {name: make(name) for name in FAMILIES}


def make(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    family = {kind: cls.removesuffix("ForCausalLM") for cls, kind in KINDS.items()}[name.split(maxsplit=1)[0]]
    config = getattr(transformers, f"{family}Config")(**SHAPE, **FAMILIES[name])
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    return model


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(40)[None] % 50).logits
    return found


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_an_imported_file_computes_what_it_was_made_from(
    name: str, kind: str, models: dict[str, PreTrainedModel], tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "model.gguf", models[name], kind=kind)
    summary = import_model(file, tmp_path / "made")
    assert summary == check_model(tmp_path / "made")
    assert summary.architecture == type(models[name]).__name__
    assert summary.dtype == ("bfloat16" if kind == "Q8_0" else "float32")
    assert summary.chat_template
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32)
    # Half precision rounds to 1 in 2,000, eight bits and bfloat16 to 1 in 200; logits here are of size 5.
    tolerance = {"F32": 1e-5, "F16": 0.02, "Q8_0": 0.5}[kind]
    assert torch.allclose(logits(made), logits(models[name]), atol=tolerance, rtol=0)
    assert (made.config.tie_word_embeddings, made.config.head_dim) == (FAMILIES[name]["tie_word_embeddings"], 32)


def test_weights_of_32_and_16_bits_are_taken_over_exactly(models: dict[str, PreTrainedModel], tmp_path: Path) -> None:
    import_model(write_gguf(tmp_path / "model.gguf", models["llama"]), tmp_path / "made")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made").state_dict()
    for name, value in models["llama"].state_dict().items():
        assert torch.equal(made[name], value), name


def test_quantized_weights_are_the_nearest_of_bfloat16(models: dict[str, PreTrainedModel], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", models["qwen3"], kind="Q8_0")
    import_model(file, tmp_path / "made")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made").state_dict()
    from gguf import dequantize

    tensor = GgufFile(file).tensors["blk.0.ffn_up.weight"]
    meant = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
    assert torch.equal(made["model.layers.0.mlp.up_proj.weight"], meant.bfloat16())


def test_the_tokenizer_comes_along(models: dict[str, PreTrainedModel], tmp_path: Path) -> None:
    import_model(write_gguf(tmp_path / "model.gguf", models["llama"]), tmp_path / "made")
    ours, theirs = load_tokenizer(tmp_path / "made"), AutoTokenizer.from_pretrained(tmp_path / "made")
    ids = ours.encode("abc ab<|im_end|>")
    assert ids == theirs.encode("abc ab<|im_end|>", add_special_tokens=False)
    assert (ids[0], ids[-1]) == (TOKENS.index("abc"), ours.end_id)
    assert ours.decode(ids) == "abc ab<|im_end|>"


def test_a_folder_that_holds_one_file_stands_for_it(models: dict[str, PreTrainedModel], tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_gguf(tmp_path / "source" / "a.gguf", models["qwen3"])
    assert import_model(tmp_path / "source", tmp_path / "made").architecture == "Qwen3ForCausalLM"
    (tmp_path / "source" / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"holds 2 GGUF files: name one of them, .*a\.gguf for example"):
        import_model(tmp_path / "source", tmp_path / "other")


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"values": {"general.architecture": "mamba"}}, "has architecture mamba: use a model with one of"),
    "part": ({"values": {"split.count": 3}}, "is one of 3 parts"),
    "rope scaling": ({"values": {"llama.rope.scaling.type": "yarn"}}, "scales its rotary positions (yarn)"),
    "rope tables": (
        {"change": lambda t: t.update({"rope_freqs.weight": np.ones(16, np.float32)})}, "scales its rotary positions",
    ),
    "other experts": ({"values": {"llama.expert_count": 8}}, "is a mixture of experts of another family"),
    "sliding window": ({"values": {"llama.attention.sliding_window": 512}}, "has a sliding window"),
    "no tokenizer": ({"values": {"tokenizer.ggml.model": None}}, "has no tokenizer"),
    "no tokens": ({"values": {"tokenizer.ggml.tokens": None}}, "has no tokenizer"),
    "strange tokenizer": ({"values": {"tokenizer.ggml.merges": None}}, "cannot be rebuilt"),
    "no end token": ({"values": {"tokenizer.ggml.eos_token_id": None}}, "names no end token"),
    "no setting": ({"values": {"llama.block_count": None}}, "has no llama.block_count"),
    "partly rotated": ({"values": {"llama.rope.dimension_count": 16}}, "rotated in part"),
    "missing tensor": ({"change": lambda t: t.pop("blk.1.ffn_up.weight")}, "lacks the tensor model.layers.1.mlp.up"),
    "no embedding": ({"change": lambda t: t.pop("token_embd.weight")}, "lacks the tensor token_embd.weight"),
    "unknown tensor": (
        {"change": lambda t: t.update({"blk.0.attn_q.bias": np.ones(128, np.float32)})},
        "has an unknown tensor blk.0.attn_q.bias",
    ),
    "wrong shape": (
        {"change": lambda t: t.update({"output_norm.weight": np.ones(65, np.float32)})}, "of shape [65], and its",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(UNFIT))
def test_what_is_not_supported_is_named_and_leaves_nothing(
    what: str, models: dict[str, PreTrainedModel], tmp_path: Path
) -> None:
    arguments, problem = UNFIT[what]
    file = write_gguf(tmp_path / "model.gguf", models["llama"], **arguments)
    with pytest.raises(ModelError) as caught:
        import_model(file, tmp_path / "made")
    assert problem in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.fixture(scope="module")
def whole(models: dict[str, PreTrainedModel], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", models["llama"]).read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_that_was_cut_anywhere_is_not_whole(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    # Most of a file is tensors: half of the cuts are in what comes before them.
    length = data.draw(st.one_of(st.integers(0, 12_000), st.integers(0, len(whole) - 1)))
    path.write_bytes(whole[:length])
    with pytest.raises(ModelError, match="is not a whole GGUF file"):
        GgufFile(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100, b"GGUF" + b"\xff" * 100])
def test_what_is_no_gguf_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.gguf is not a whole GGUF file \(.*\): copy it again"):
        import_model(tmp_path / "model.gguf", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf does not exist: name a GGUF file or a Hugging Face directory"):
        import_model(tmp_path / "none.gguf", tmp_path / "made")


def test_a_missing_reader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(ModelError, match="needs gguf: pip install gguf"):
        import_model(tmp_path / "model.gguf", tmp_path / "made")
