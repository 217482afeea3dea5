"""The tensors that a model has, and the files that they are in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from schemas import ModelError
from schemas.model import own_tensors, read_architecture, tensor_shapes, weight_files
from schemas.model.tensor_shapes import EMBEDDING, HEAD
from tests.consumers.trainer.tiny_models import CONFIGS, make_model

SHAPES = {EMBEDDING: (8, 4), "model.norm.weight": (4,), "model.layers.0.mlp.up_proj.weight": (6, 4)}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_names_and_shapes_are_those_that_transformers_saves(name: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path, name)
    with safe_open(folder / "model.safetensors", "np") as file:
        saved = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no dictionary
    assert tensor_shapes(read_architecture(folder)) == saved


def test_copies_that_some_directories_hold_are_left_out() -> None:
    found = SHAPES | {HEAD: (8, 4), "model.layers.0.self_attn.rotary_emb.inv_freq": (2,)}
    assert own_tensors(SHAPES, found, source="x") == list(SHAPES)
    untied = SHAPES | {HEAD: (8, 4)}
    assert own_tensors(untied, untied, source="x") == list(untied)


@given(st.sampled_from(sorted(SHAPES)), st.sampled_from(["missing", "unknown", "shape"]))
def test_each_tensor_that_does_not_fit_is_named(name: str, damage: str) -> None:
    found = dict(SHAPES)
    match damage:
        case "missing":
            del found[name]
            problem = f"models/x lacks the tensor {name}: take config.json and weights from the same model"
        case "unknown":
            found[f"{name}.scale"] = (1,)
            problem = f"models/x has an unknown tensor {name}.scale"
        case _:
            found[name] = (*SHAPES[name], 1)
            problem = f"has {name} of shape {[*SHAPES[name], 1]}, and its config.json asks for {list(SHAPES[name])}"
    with pytest.raises(ModelError) as caught:
        own_tensors(SHAPES, found, source="models/x")
    assert problem in str(caught.value)


def test_several_that_are_missing_are_counted() -> None:
    with pytest.raises(ModelError, match=rf"lacks the tensor {EMBEDDING} and 2 more"):
        own_tensors(SHAPES, {}, source="x")


def index(folder: Path, *files: object) -> None:
    text = json.dumps({"weight_map": {f"tensor {n}": file for n, file in enumerate(files)}})
    (folder / "model.safetensors.index.json").write_text(text)


def test_files_are_the_one_or_those_of_the_index(tmp_path: Path) -> None:
    index(tmp_path, "b.safetensors", "a.safetensors", "b.safetensors")
    assert weight_files(tmp_path) == [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_one_file_beside_an_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    index(tmp_path, "a.safetensors")
    with pytest.raises(ModelError, match=r"has model\.safetensors and model\.safetensors\.index\.json: remove the one"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["../a.safetensors"], r"names '\.\./a\.safetensors', which is no safetensors file beside it"),
        (["/etc/passwd"], "which is no safetensors file beside it"),
        ([".."], "which is no safetensors file beside it"),
        (["pytorch_model.bin"], "which is no safetensors file beside it"),
        ([3], "is not an index of weights"),
        ([], "names no file"),
    ],
)
def test_an_index_that_cannot_be_followed_is_named(files: list[object], problem: str, tmp_path: Path) -> None:
    index(tmp_path, *files)
    with pytest.raises(ModelError, match=problem):
        weight_files(tmp_path)


def test_weights_of_another_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no model\.safetensors: save the model with safetensors"):
        weight_files(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"\(only pytorch_model\.bin, which is not safetensors\)"):
        weight_files(tmp_path)
