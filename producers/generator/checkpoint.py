"""The tensors of a model directory, by the headers of its safetensors files alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from schemas import ModelError, WeightsError

TensorShapes = dict[str, tuple[int, ...]]
"""Tensor name to shape."""
_HEADER_LIMIT = 100 * 1024 * 1024
"""Longest header that the format allows, in bytes."""
_TIED = "lm_head.weight"
"""A copy of the embedding where the two are tied; some writers leave it out."""


class _Tensor(msgspec.Struct):
    shape: tuple[int, ...]


class _ModelConfig(msgspec.Struct):
    tie_word_embeddings: bool = False


def tensor_shapes(model: Path) -> TensorShapes:
    """Tensors that weights of this model must have. Raises ModelError for a directory that can't be read."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{model} has no .safetensors file: it is not a Hugging Face model directory")
    try:
        shapes = {name: shape for file in files for name, shape in _read_header(file).items()}
        config = msgspec.json.decode((model / "config.json").read_bytes(), type=_ModelConfig)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise ModelError(f"{model} cannot be read as a model directory: {error}") from None
    if config.tie_word_embeddings:
        shapes.pop(_TIED, None)
    return shapes


def check_shapes(folder: Path, expected: TensorShapes) -> None:
    """Raises WeightsError unless ``folder/model.safetensors`` has every expected tensor in its shape."""
    file = folder / "model.safetensors"
    try:
        found = _read_header(file)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise WeightsError(f"{file} cannot be read as safetensors: {error}") from None
    for name, shape in expected.items():
        if found.get(name) != shape:
            what = f"has shape {found[name]}" if name in found else "is missing"
            raise WeightsError(f"{file}: {name} {what}, the model needs {shape}: these are weights of another model")


def _read_header(file: Path) -> TensorShapes:
    """Source: safetensors format, 8 bytes of little-endian length, then that many bytes of JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > _HEADER_LIMIT:
            raise ValueError(f"header of {length} bytes")
        text = stream.read(length)
        if len(text) < length:
            raise ValueError("it ends within its header")
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    header.pop("__metadata__", None)
    return {name: msgspec.json.decode(entry, type=_Tensor).shape for name, entry in header.items()}
