"""What a safetensors file holds, by its header alone.

A file is 8 bytes of header length, a JSON header of name to dtype, shape and byte range, and the data.
Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import ModelError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies."""

    file: Path
    dtype: str
    """As the format names it: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    start: int
    """Position in the file, in bytes."""
    size_bytes: int

    @property
    def items(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, Tensor]:
    """Name to tensor of all that ``path`` holds. Raises ModelError where the file is missing or damaged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise _damaged(path, f"its header would be {length} of {size} bytes")
            header = msgspec.json.decode(file.read(length), type=dict[str, dict[str, Any]])
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): copy it again") from error
    except msgspec.DecodeError as error:
        raise _damaged(path, str(error)) from None
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    end = max((tensor.start + tensor.size_bytes for tensor in tensors.values()), default=8 + length)
    if end != size:
        raise _damaged(path, f"it has {size} bytes where its header says {end}")
    return tensors


def _tensor(path: Path, name: str, entry: dict[str, Any], base: int) -> Tensor:
    try:
        start, end = entry["data_offsets"]
        tensor = Tensor(
            file=path, dtype=str(entry["dtype"]), shape=tuple(map(int, entry["shape"])), start=base + start,
            size_bytes=end - start,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"the entry of {name} is not valid ({error!r})") from None
    item = ITEM_BYTES.get(tensor.dtype)
    if item is not None and tensor.size_bytes != item * tensor.items:
        raise _damaged(path, f"{name} has {tensor.size_bytes} bytes for shape {list(tensor.shape)} of {tensor.dtype}")
    return tensor


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is not a whole safetensors file ({what}): copy it again")
