"""Whether a run can start from a model directory: told from its small files and the headers of its weights."""

from __future__ import annotations

from pathlib import Path

import msgspec

from environments import load_chat_template, load_tokenizer
from schemas import ModelError
from schemas.model import (
    Architecture,
    Tensor,
    own_tensors,
    read_architecture,
    read_header,
    tensor_shapes,
    weight_files,
)

DTYPES = {"F32": "float32", "BF16": "bfloat16"}
"""What weights may be, as safetensors names it, and as everyone else does."""


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a model directory holds."""

    path: str
    architecture: str
    parameters: int
    """Numbers in the weights files; a tied head is not counted twice."""
    dtype: str
    """Of the weights: float32 or bfloat16. Where both occur, of the most numbers."""
    layers: int
    dimension: int
    vocabulary: int
    max_length: int
    """Most tokens of a sequence."""
    tied: bool
    """Whether embedding and head are one matrix."""
    experts: int
    """In each layer that has a mixture of them; 0 for a dense model."""
    chat_template: bool
    """Whether environments can speak to it in messages."""


def check_model(folder: Path, *, tokens: int = 0) -> ModelSummary:
    """What ``folder`` holds. Raises ModelError, with the remedy, where a run cannot start from it.

    ``tokens``: most that a rollout may have, which the model must have positions for.
    """
    folder = Path(folder)
    architecture = read_architecture(folder)
    if tokens > architecture.max_positions:
        raise ModelError(
            f"generator.max_model_len {tokens} is above the {architecture.max_positions} positions of {folder} "
            "(max_position_embeddings): lower it, or use a model that was made for more"
        )
    check_tokenizer(folder, architecture)
    tensors = find_tensors(folder, architecture)
    unfit = sorted({tensor.dtype for tensor in tensors.values()} - set(DTYPES))
    if unfit:
        remedy = f"headrace model import {folder} DIR makes them float32" if unfit == ["F16"] else "convert them"
        raise ModelError(f"weights of {folder} are {', '.join(unfit)}, not float32 or bfloat16: {remedy}")
    return ModelSummary(
        path=str(folder),
        architecture=architecture.name,
        parameters=sum(tensor.items for tensor in tensors.values()),
        dtype=_main_dtype(tensors),
        layers=architecture.layers,
        dimension=architecture.dim,
        vocabulary=architecture.vocabulary,
        max_length=architecture.max_positions,
        tied=architecture.tied,
        experts=0 if architecture.experts is None else architecture.experts.count,
        chat_template=has_chat_template(folder),
    )


def check_tokenizer(folder: Path, architecture: Architecture) -> None:
    """Raises ModelError where the tokenizer is missing, has no end token, or has tokens that the model has not."""
    end_id = load_tokenizer(folder).end_id
    if end_id >= architecture.vocabulary:
        raise ModelError(
            f"{folder}: end token {end_id} is outside the model's vocabulary of {architecture.vocabulary}: "
            "take tokenizer and weights from the same model"
        )


def has_chat_template(folder: Path) -> bool:
    """Whether environments that speak in messages can be played. Raises ModelError where its template is damaged."""
    return load_chat_template(folder) is not None


def find_tensors(folder: Path, architecture: Architecture) -> dict[str, Tensor]:
    """Name to tensor of all that the model has, from its one file or those of its index; copies are left out.

    Raises ModelError where a file or a tensor is missing or damaged, or has another shape than config.json says.
    """
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        tensors |= read_header(file)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return {name: tensors[name] for name in own_tensors(tensor_shapes(architecture), shapes, source=str(folder))}


def _main_dtype(tensors: dict[str, Tensor]) -> str:
    items = dict.fromkeys(DTYPES, 0)
    for tensor in tensors.values():
        items[tensor.dtype] += tensor.items
    return DTYPES[max(items, key=lambda dtype: items[dtype])]
