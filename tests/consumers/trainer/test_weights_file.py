"""Weights as one safetensors file."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from consumers.trainer.titan.weights_file import weights_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_are_those_of_safetensors(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = {
        "model.b": torch.randn(3, 5),
        "model.a": torch.randn(7, requires_grad=True),
        "transposed": torch.randn(4, 6).T,
        "scalar": torch.tensor(1.5),
        "none": torch.empty(0, 3),
        'quoted "ä"': torch.randn(2),
    }
    cast = {name: value.detach().to(dtype).contiguous() for name, value in weights.items()}
    assert weights_bytes(weights, dtype) == safetensors.torch.save(cast, metadata={"format": "pt"})


def test_the_order_in_which_weights_come_does_not_matter() -> None:
    weights = {"b": torch.ones(2), "a": torch.zeros(3)}
    assert weights_bytes(weights, torch.float32) == weights_bytes(dict(reversed(weights.items())), torch.float32)
