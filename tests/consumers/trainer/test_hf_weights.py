"""Weights go in and out one tensor at a time. That they are right is shown by test_titan_model.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from consumers.trainer.titan import hf_weights
from consumers.trainer.titan.execution import Execution
from consumers.trainer.titan.hf_weights import load_hf_weights
from consumers.trainer.titan.model import build_config, build_model
from consumers.trainer.titan.weights_file import StoredWeights, stored_weights
from consumers.trainer.titan.world import World
from schemas.model import read_architecture
from tests.consumers.trainer.tiny_models import CONFIGS, make_model, sharded


def model_and_adapter(folder: Path) -> tuple[Any, Any]:
    architecture = read_architecture(folder)
    config = build_config(architecture, max_positions=8)
    world = World(rank=0, size=1, device=torch.device("cpu"))
    model = build_model(config, architecture, world, Execution())
    return model, hf_weights.adapter(config, architecture)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_no_more_than_a_layer_is_read_before_the_model_has_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sharded(make_model(tmp_path, name), tmp_path / "sharded", 3)
    model, adapter = model_and_adapter(folder)
    read: list[str] = []
    parts: list[list[str]] = []
    load, read_one = model.load_state_dict, StoredWeights.read

    def noted_load(state: dict[str, torch.Tensor], **options: Any) -> Any:
        parts.append([*read])
        read.clear()
        return load(state, **options)

    def noted_read(self: StoredWeights, name: str) -> torch.Tensor:
        read.append(name)
        return read_one(self, name)

    monkeypatch.setattr(model, "load_state_dict", noted_load)
    monkeypatch.setattr(StoredWeights, "read", noted_read)
    with stored_weights(folder) as weights:
        load_hf_weights(model, adapter, weights, source="here")
        names = weights.shapes.keys()
    assert sorted(name for part in parts for name in part) == sorted(names), "each once"
    layers = [{name.split(".")[2] for name in part} for part in parts if any(".layers." in name for name in part)]
    assert layers == [{str(number)} for number in range(len(layers))]
    assert len(layers) > 1


@pytest.mark.parametrize("name", list(CONFIGS))
def test_what_was_loaded_comes_out_in_the_same_bits(name: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path, name)
    model, adapter = model_and_adapter(folder)
    with stored_weights(folder) as weights:
        load_hf_weights(model, adapter, weights, source="here")
    original, found = load_file(folder / "model.safetensors"), dict(hf_weights.hf_weights(model, adapter))
    assert found.keys() == original.keys()
    assert all(torch.equal(found[each], original[each]) for each in original)
