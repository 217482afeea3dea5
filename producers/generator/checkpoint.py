"""Whether weights are those of the model that an engine was built with, told by headers alone."""

from __future__ import annotations

from pathlib import Path

from schemas import ModelError, WeightsError
from schemas.model import WEIGHTS_FILE, Shape, own_tensors, read_architecture, read_header
from schemas.model import tensor_shapes as shapes_of

TensorShapes = dict[str, Shape]
"""Tensor name to shape."""


def tensor_shapes(model: Path) -> TensorShapes:
    """Tensors that weights of this model must have. Raises ModelError for a directory that is not supported."""
    return shapes_of(read_architecture(model))


def check_shapes(folder: Path, expected: TensorShapes) -> None:
    """Raises WeightsError unless the one weights file in ``folder`` has every expected tensor in its shape."""
    file = folder / WEIGHTS_FILE
    try:
        own_tensors(expected, {name: each.shape for name, each in read_header(file).items()}, source=str(file))
    except ModelError as error:
        raise WeightsError(str(error)) from None
