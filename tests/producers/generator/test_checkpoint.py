"""Shapes of a model's tensors, read from its files' headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from producers.generator.checkpoint import check_shapes, tensor_shapes
from schemas import ModelError, WeightsError


def write(folder: Path, file: str = "model.safetensors", *, tied: bool = False, **shapes: tuple[int, ...]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied, "hidden_size": 4}))
    tensors = {name.replace("__", "."): torch.zeros(shape) for name, shape in shapes.items()}
    save_file(tensors, folder / file, metadata={"format": "pt"})


def test_shapes_of_all_files_of_a_model_are_found(tmp_path: Path) -> None:
    write(tmp_path, "model-00001-of-00002.safetensors", a=(2, 3))
    write(tmp_path, "model-00002-of-00002.safetensors", b=(4,))
    assert tensor_shapes(tmp_path) == {"a": (2, 3), "b": (4,)}


@pytest.mark.parametrize(("tied", "needed"), [(True, {"a": (2,)}), (False, {"a": (2,), "lm_head.weight": (3,)})])
def test_a_tied_output_head_is_not_asked_for(tmp_path: Path, tied: bool, needed: dict[str, tuple[int, ...]]) -> None:
    write(tmp_path, tied=tied, a=(2,), lm_head__weight=(3,))
    assert tensor_shapes(tmp_path) == needed


def test_weights_may_have_more_tensors_but_not_fewer_or_others(tmp_path: Path) -> None:
    write(tmp_path, a=(2,), b=(3,))
    check_shapes(tmp_path, {"a": (2,)})
    with pytest.raises(WeightsError, match=r"c is missing, the model needs \(5,\)"):
        check_shapes(tmp_path, {"c": (5,)})
    with pytest.raises(WeightsError, match=r"b has shape \(3,\), the model needs \(4,\)"):
        check_shapes(tmp_path, {"b": (4,)})


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, (4).to_bytes(8, "little") + b"{}"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        check_shapes(tmp_path, {"a": (2,)})
    with pytest.raises(ModelError, match="cannot be read"):
        tensor_shapes(tmp_path)


def test_a_directory_without_weights_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        tensor_shapes(tmp_path)
    with pytest.raises(WeightsError, match="cannot be read"):
        check_shapes(tmp_path, {"a": (2,)})
