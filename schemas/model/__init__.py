"""What a model directory must hold: the one notion of a supported model, for all that read one. Loads no engine."""

from .architecture import Architecture, Experts, RopeScaling, read_architecture
from .header import ITEM_BYTES, Tensor, read_header
from .tensor_shapes import WEIGHTS_FILE, Shape, own_tensors, tensor_shapes, weight_files

__all__ = [
    "ITEM_BYTES", "WEIGHTS_FILE", "Architecture", "Experts", "RopeScaling", "Shape", "Tensor", "own_tensors",
    "read_architecture", "read_header", "tensor_shapes", "weight_files",
]  # fmt: skip
