"""Whether a run can start from a model directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from headrace.models import ModelSummary, check_model, has_chat_template
from headrace.models.characters import SIZE
from schemas import ModelError
from tests.headrace.models.model_folders import (
    CONFIG,
    DIMENSION,
    LAYERS,
    LLAMA,
    MOE,
    split_weights,
    weights,
    write_model,
)


def problem_of(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_model(folder)
    return str(caught.value)


def test_whole_directory_is_summed_up(tmp_path: Path) -> None:
    layer = 2 * DIMENSION + 4 * 4 + 2 * 2 * 4 + 4 * 4 + 2 * 2 + 3 * 6 * 4
    assert check_model(write_model(tmp_path)) == ModelSummary(
        path=str(tmp_path), architecture="Qwen3ForCausalLM", parameters=SIZE * DIMENSION + 4 + LAYERS * layer,
        dtype="float32", layers=LAYERS, dimension=DIMENSION, vocabulary=SIZE, max_length=128, tied=True, experts=0,
        chat_template=False,
    )  # fmt: skip


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("family", "experts"), [({}, 0), (LLAMA, 0), (MOE, 3)])
def test_each_family_is_known_in_one_file_and_in_several(
    family: dict[str, Any], experts: int, split: bool, tmp_path: Path
) -> None:
    write_model(tmp_path, weights(**family), **family)
    if split:
        split_weights(tmp_path)
    summary = check_model(tmp_path)
    assert summary.architecture == (CONFIG | family)["architectures"][0]
    assert (summary.tied, summary.experts) == (family.get("tie_word_embeddings", True), experts)
    assert summary.parameters == sum(array.size for array in weights(**family).values())


def test_rotary_scaling_of_llama_3_is_known(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    assert check_model(write_model(tmp_path, weights(**LLAMA), **LLAMA, rope_scaling=scaling)).layers == LAYERS


def test_type_is_that_of_the_most_numbers(tmp_path: Path) -> None:
    """Some directories keep their norms in float32."""
    arrays = weights()
    write_model(tmp_path, {})
    halves = {name: torch.from_numpy(array).to(torch.bfloat16 if array.ndim > 1 else torch.float32)
              for name, array in arrays.items()}  # fmt: skip
    save_file(halves, tmp_path / "model.safetensors")
    assert check_model(tmp_path).dtype == "bfloat16"


def test_chat_template_is_told(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert not has_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert has_chat_template(tmp_path)
    assert check_model(tmp_path).chat_template


def test_missing_directory_names_the_remedy(tmp_path: Path) -> None:
    problem = problem_of(tmp_path / "none")
    assert "does not exist: correct model.path, or make it with headrace model tiny" in problem


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "has architecture MixtralForCausalLM: use a model with one of"),
        ({"use_sliding_window": True}, "has use_sliding_window, which is not supported"),
        ({"quantization_config": {"bits": 4}}, "has quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scales its rotary positions (yarn)"),
        ({"hidden_size": None}, "missing required field `hidden_size`"),
        ({"hidden_size": 5}, "model.embed_tokens.weight of shape [64, 4], and its config.json asks for [64, 5]"),
        ({"num_hidden_layers": 3}, "lacks the tensor model.layers.2.input_layernorm.weight and 10 more"),
        ({"num_hidden_layers": 1}, "has an unknown tensor model.layers.1.input_layernorm.weight"),
        ({"tie_word_embeddings": False}, "lacks the tensor lm_head.weight: take config.json and weights from the same"),
        ({"vocab_size": 2}, "end token 2 is outside the model's vocabulary of 2"),
    ],
)
def test_configuration_that_does_not_fit_is_named(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    assert problem in problem_of(write_model(tmp_path, **config))


def test_a_rollout_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert check_model(tmp_path, tokens=128).max_length == 128
    with pytest.raises(ModelError, match=r"generator\.max_model_len 129 is above the 128 positions of .*: lower it"):
        check_model(tmp_path, tokens=129)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _rewrite(folder: Path, **changes: Any) -> None:
    """Weights with other arrays under some names; None leaves one out. Dots are written as two underscores."""
    arrays = weights() | {name.replace("__", "."): array for name, array in changes.items()}
    save_arrays({name: array for name, array in arrays.items() if array is not None}, folder / "model.safetensors")


SECOND = "model-00002-of-00002.safetensors"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
    "half a configuration": (lambda f: _truncate(f / "config.json"), "config.json is not a JSON object"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json does not exist"),
    "half a tokenizer": (lambda f: _truncate(f / "tokenizer.json"), "tokenizer.json is not a tokenizer"),
    "no end token": (
        lambda f: [(f / n).write_text("{}") for n in ("generation_config.json", "tokenizer_config.json")],
        "names no end token",
    ),
    "broken chat template": (
        lambda f: (f / "chat_template.jinja").write_text("{% for message in %}"), "chat template cannot be read",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors: save the model with safe"),
    "other weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "only pytorch_model.bin, which is not safetensors",
    ),
    "half the weights": (lambda f: _truncate(f / "model.safetensors"), "is not a whole safetensors file"),
    "missing tensor": (lambda f: _rewrite(f, model__norm__weight=None), "lacks the tensor model.norm.weight: take"),
    "unknown tensor": (
        lambda f: _rewrite(f, model__layers__0__self_attn__q_proj__bias=np.zeros(4, np.float32)),
        "has an unknown tensor model.layers.0.self_attn.q_proj.bias",
    ),
    "wrong shape": (
        lambda f: _rewrite(f, model__norm__weight=np.zeros(5, np.float32)),
        "has model.norm.weight of shape [5], and its config.json asks for [4]",
    ),
    "missing shard": (
        lambda f: [split_weights(f), (f / SECOND).unlink()], f"{SECOND} cannot be read (No such file or directory)",
    ),
    "truncated shard": (
        lambda f: [split_weights(f), _truncate(f / SECOND)], f"{SECOND} is not a whole safetensors file",
    ),
    "shard of nothing": (lambda f: [split_weights(f), (f / SECOND).write_bytes(b"")], "is not a whole safetensors"),
    "half an index": (
        lambda f: [split_weights(f), _truncate(f / "model.safetensors.index.json")], "is not an index of weights",
    ),
    "index of one shard": (
        lambda f: [split_weights(f), (f / "model.safetensors.index.json").write_text(
            '{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}')],
        "lacks the tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    act, problem = DAMAGE[damage]
    act(write_model(tmp_path))
    found = problem_of(tmp_path)
    assert problem in found
    assert ": " in found, "a remedy follows"
    assert len(found.splitlines()) == 1


def test_other_number_types_are_named(tmp_path: Path) -> None:
    assert "are F16, not float32 or bfloat16: headrace model import" in problem_of(
        write_model(tmp_path / "a", weights(np.float16))
    )
    assert "are F64, not float32 or bfloat16: convert them" in problem_of(
        write_model(tmp_path / "b", weights(np.float64))
    )
