"""Whether weights are those of the model that an engine was built with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from producers.generator.checkpoint import TensorShapes, check_shapes, tensor_shapes
from schemas import ModelError, WeightsError
from tests.stand_in.tiny import make_tiny_model

NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, seed=0)
    return folder


@pytest.fixture(scope="module")
def shapes(model: Path) -> TensorShapes:
    return tensor_shapes(model)


def test_the_model_s_own_weights_fit(model: Path, shapes: TensorShapes) -> None:
    check_shapes(model, shapes)
    assert shapes[NORM] == (128,)


def changed(model: Path, folder: Path, **changes: torch.Tensor | None) -> Path:
    """Weights of ``model`` with other tensors under some names; None leaves one out."""
    tensors = load_file(model / "model.safetensors")
    tensors |= {name.replace("__", "."): value for name, value in changes.items()}  # type: ignore[misc]
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / "model.safetensors")
    return folder


def test_a_copy_of_a_tied_head_may_be_there(model: Path, shapes: TensorShapes, tmp_path: Path) -> None:
    check_shapes(changed(model, tmp_path, lm_head__weight=torch.zeros(64, 128)), shapes)


def test_weights_of_another_model_are_refused(model: Path, shapes: TensorShapes, tmp_path: Path) -> None:
    """Of a missing tensor vLLM would only warn, and keep the old one."""
    with pytest.raises(WeightsError, match=rf"lacks the tensor {NORM}"):
        check_shapes(changed(model, tmp_path, model__norm__weight=None), shapes)
    with pytest.raises(WeightsError, match=rf"has {NORM} of shape \[4\], and its config\.json asks for \[128\]"):
        check_shapes(changed(model, tmp_path, model__norm__weight=torch.zeros(4)), shapes)
    with pytest.raises(WeightsError, match="has an unknown tensor more"):
        check_shapes(changed(model, tmp_path, more=torch.zeros(4)), shapes)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, (4).to_bytes(8, "little") + b"{}"])
def test_a_damaged_file_is_named(shapes: TensorShapes, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole safetensors file .*: copy it again"):
        check_shapes(tmp_path, shapes)


def test_a_missing_file_is_named(shapes: TensorShapes, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        check_shapes(tmp_path, shapes)


def test_a_directory_of_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        tensor_shapes(tmp_path)
