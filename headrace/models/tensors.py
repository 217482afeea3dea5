"""Safetensors files as bytes: reading what one holds, and joining several, without an engine.

A file is 8 bytes of header length, a JSON header of name to dtype, shape and byte range, and the data.
Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from schemas import ModelError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
CHUNK_BYTES = 1 << 24


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
        raise ModelError(f"{path} cannot be read ({error.strerror}): copy the model again") from error
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
    return ModelError(f"{path} is not a whole safetensors file ({what}): copy the model again")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """One file of ``tensors``, by name; half precision becomes float32, exactly.

    The same input gives the same bytes.
    """
    names = sorted(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in names:
        tensor = tensors[name]
        dtype = "F32" if tensor.dtype == "F16" else tensor.dtype
        end = position + tensor.size_bytes * ITEM_BYTES[dtype] // ITEM_BYTES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # the data is aligned to 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for chunk in _chunks(tensors[name]):
                file.write(chunk)


def _chunks(tensor: Tensor) -> Iterable[bytes]:
    remaining = tensor.size_bytes
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        while remaining:
            chunk = file.read(min(remaining, CHUNK_BYTES))
            if not chunk:
                raise _damaged(tensor.file, "it ends early")
            remaining -= len(chunk)
            yield np.frombuffer(chunk, dtype="<f2").astype("<f4").tobytes() if tensor.dtype == "F16" else chunk
