"""Weights as Hugging Face keeps them: safetensors files in a folder, or bytes."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
import torch

from schemas import ModelError, WeightsError
from schemas.model import weight_files


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
    """A safetensors file of ``weights`` in ``dtype``. Equal weights give equal bytes: the format sorts the names."""
    cast = {name: value.to(device="cpu", dtype=dtype).contiguous() for name, value in weights.items()}
    return safetensors.torch.save(cast, metadata={"format": "pt"})
