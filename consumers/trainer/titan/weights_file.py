"""Weights as Hugging Face keeps them: safetensors files in a folder, or bytes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch

from schemas import WeightsError


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of ``folder``: of model.safetensors, or of the files that model.safetensors.index.json names.

    Raises WeightsError where a file is missing or damaged.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        try:
            weights.update(safetensors.torch.load_file(path))
        except FileNotFoundError:
            raise WeightsError(f"{path} does not exist: copy the whole model directory again") from None
        except (OSError, safetensors.SafetensorError) as error:
            raise WeightsError(f"{path} is damaged ({error}): copy it again") from None
    return weights


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    try:
        names = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()
    except (OSError, msgspec.DecodeError) as error:
        raise WeightsError(f"{index} is damaged ({error}): copy it again") from None
    return [folder / name for name in sorted(set(names))]


def weights_bytes(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> bytes:
    """A safetensors file of ``weights`` in ``dtype``. Equal weights give equal bytes: the format sorts the names."""
    cast = {name: value.to(device="cpu", dtype=dtype).contiguous() for name, value in weights.items()}
    return safetensors.torch.save(cast, metadata={"format": "pt"})
