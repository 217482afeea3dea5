"""Weights as Hugging Face keeps them: safetensors files in a folder, or bytes."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from schemas import ModelError, WeightsError
from schemas.model import weight_files

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}
LENGTH_BYTES = ALIGNMENT = 8
"""The file begins with the length of its header; the header ends with blanks, so that the tensors are aligned."""


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of ``folder``: of model.safetensors, or of the files that model.safetensors.index.json names.

    Raises WeightsError where a file is missing or damaged.
    """
    try:
        files = weight_files(folder)
    except ModelError as error:
        raise WeightsError(str(error)) from None
    weights: dict[str, torch.Tensor] = {}
    for path in files:
        try:
            weights.update(safetensors.torch.load_file(path))
        except FileNotFoundError:
            raise WeightsError(f"{path} does not exist: copy the whole model directory again") from None
        except (OSError, safetensors.SafetensorError) as error:
            raise WeightsError(f"{path} is damaged ({error}): copy it again") from None
    return weights


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
