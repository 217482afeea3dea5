"""Weights as Hugging Face keeps them: safetensors files in a folder, or bytes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch

from schemas import ModelError, WeightsError
from schemas.model import weight_files

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}
LENGTH_BYTES = ALIGNMENT = 8
"""The file begins with the length of its header; the header ends with blanks, so that the tensors are aligned."""


class StoredWeights:
    """The tensors of a folder, each read when it is asked for."""

    def __init__(self, files: dict[Path, Any]) -> None:
        """files: open ones, by their paths."""
        self._places = {name: (path, file) for path, file in files.items() for name in file.keys()}  # noqa: SIM118
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(file.get_slice(name).get_shape()) for name, (_, file) in self._places.items()
        }
        """Of all tensors, by name."""

    def read(self, name: str) -> torch.Tensor:
        """A tensor in main memory, in its own type. Raises WeightsError where the file cannot be read any more."""
        path, file = self._places[name]
        with _told(path):
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


@contextlib.contextmanager
def stored_weights(folder: Path) -> Iterator[StoredWeights]:
    """Of model.safetensors in ``folder``, or of the files that model.safetensors.index.json names, which stay open.

    Raises WeightsError where a file is missing or damaged.
    """
    try:
        paths = weight_files(folder)
    except ModelError as error:
        raise WeightsError(str(error)) from None
    with contextlib.ExitStack() as stack:
        files = {}
        for path in paths:
            with _told(path):
                files[path] = stack.enter_context(safetensors.safe_open(path, framework="pt"))
        yield StoredWeights(files)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """What goes wrong with the file, as a WeightsError."""
    try:
        yield
    except FileNotFoundError:
        raise WeightsError(f"{path} does not exist: copy the whole model directory again") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise WeightsError(f"{path} is damaged ({error}): copy it again") from None


def weights_bytes(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> bytes:
    """A safetensors file of ``weights`` in ``dtype``. Equal weights give equal bytes: the names are sorted.

    The same bytes as safetensors' own ``save``, which copies all of them once more; a step waits for this.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[memoryview] = []
    end = 0
    for name in sorted(weights):
        value = weights[name].detach().to(device="cpu", dtype=dtype).contiguous()
        part = value.reshape(-1).view(torch.uint8).numpy().data
        begin, end = end, end + part.nbytes
        header[name] = {"dtype": DTYPES[dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
        parts.append(part)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *parts])
