"""Whether a run can start from a model directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.models import ModelSummary, check_model
from headrace.models.characters import SIZE
from schemas import ModelError
from tests.headrace.models.model_folders import DIMENSION, LAYERS, split_weights, weights, write_model


def problem_of(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_model(folder)
    return str(caught.value)


def test_whole_directory_is_summed_up(tmp_path: Path) -> None:
    assert check_model(write_model(tmp_path)) == ModelSummary(
        path=str(tmp_path), architecture="Qwen3ForCausalLM", parameters=SIZE * DIMENSION + 4 + 2 * 24, dtype="float32",
        layers=LAYERS, dimension=DIMENSION, vocabulary=SIZE, max_length=128, tied=True,
    )  # fmt: skip


def test_llama_is_known(tmp_path: Path) -> None:
    write_model(tmp_path, weights(head=True), architectures=["LlamaForCausalLM"], tie_word_embeddings=False)
    summary = check_model(tmp_path)
    assert (summary.architecture, summary.tied) == ("LlamaForCausalLM", False)


def test_missing_directory_names_the_remedy(tmp_path: Path) -> None:
    problem = problem_of(tmp_path / "none")
    assert "does not exist: correct model.path, or make it with headrace model tiny" in problem


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "has architecture MixtralForCausalLM: use a model with Llama"),
        ({"architectures": []}, "has architecture None"),
        ({"attention_bias": True}, "has attention_bias = True"),
        ({"use_sliding_window": True}, "has use_sliding_window = True"),
        ({"hidden_act": "gelu"}, "has hidden_act = 'gelu': only 'silu' is supported"),
        ({"quantization_config": {"bits": 4}}, "has quantization_config"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "scales its positions (llama3)"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scales its positions (yarn)"),
        ({"hidden_size": None}, "has no whole number hidden_size"),
        ({"hidden_size": 5}, "an embedding of shape [64, 4], not [64, 5]: take config.json and weights from the same"),
        ({"num_hidden_layers": 3}, "2 layers, not 3"),
        ({"tie_word_embeddings": False}, "no lm_head.weight"),
        ({"vocab_size": 2}, "end token 2 is outside the model's vocabulary of 2"),
    ],
)
def test_configuration_that_does_not_fit_is_named(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    assert problem in problem_of(write_model(tmp_path, **config))


@pytest.mark.parametrize("rope", [{"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}])
def test_plain_positions_are_known_in_both_spellings(tmp_path: Path, rope: dict[str, Any]) -> None:
    check_model(write_model(tmp_path, **rope))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no configuration": (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
    "half a configuration": (lambda f: _truncate(f / "config.json"), "config.json is not a JSON object"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json does not exist"),
    "no end token": (
        lambda f: [(f / n).write_text("{}") for n in ("generation_config.json", "tokenizer_config.json")] and None,
        "names no end token",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors: save the model with safe"),
    "other weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin") and None,
        "only pytorch_model.bin, which is not safetensors",
    ),
    "half the weights": (lambda f: _truncate(f / "model.safetensors"), "is not a whole safetensors file"),
    "several weights": (split_weights, "are in several files: headrace model import"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    act, problem = DAMAGE[damage]
    act(write_model(tmp_path))
    assert problem in problem_of(tmp_path)


def test_other_number_types_are_named(tmp_path: Path) -> None:
    assert "are F16, not float32 or bfloat16: headrace model import" in problem_of(
        write_model(tmp_path / "a", weights(np.float16))
    )
    assert "are F64, not float32 or bfloat16: convert them" in problem_of(
        write_model(tmp_path / "b", weights(np.float64))
    )
