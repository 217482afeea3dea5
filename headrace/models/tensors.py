"""Writing safetensors files, whose tensors may come from several others, without an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from schemas import ModelError
from schemas.model import ITEM_BYTES, Tensor

CHUNK_BYTES = 1 << 24


class Entry(NamedTuple):
    """One tensor that is to be written."""

    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[bytes]]
    """Its bytes, made only when they are written: not all of a model fits into memory."""


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """One file of ``tensors``, by name; half precision becomes float32, exactly.

    The same input gives the same bytes.
    """
    write_entries(path, {name: _entry(tensor) for name, tensor in tensors.items()})


def write_entries(path: Path, entries: dict[str, Entry]) -> None:
    """One file of ``entries``. The same input gives the same bytes: the order of the names does not count."""
    names = sorted(entries)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in names:
        dtype, shape, _ = entries[name]
        end = position + ITEM_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # the data is aligned to 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for chunk in entries[name].chunks():
                file.write(chunk)


def _entry(tensor: Tensor) -> Entry:
    dtype = "F32" if tensor.dtype == "F16" else tensor.dtype
    return Entry(dtype=dtype, shape=tensor.shape, chunks=partial(_chunks, tensor))


def _chunks(tensor: Tensor) -> Iterable[bytes]:
    remaining = tensor.size_bytes
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        while remaining:
            chunk = file.read(min(remaining, CHUNK_BYTES))
            if not chunk:
                raise ModelError(f"{tensor.file} has become shorter while it was read: copy it again")
            remaining -= len(chunk)
            yield np.frombuffer(chunk, dtype="<f2").astype("<f4").tobytes() if tensor.dtype == "F16" else chunk
