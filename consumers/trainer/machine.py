"""What decides the bits of a step besides its inputs; recorded with each step."""

from __future__ import annotations

import importlib.metadata
import os
import platform

LIBRARIES = ("headrace", "numpy", "torch", "torchtitan")


def library_versions() -> dict[str, str]:
    """Name to version of Python and the libraries that compute."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in LIBRARIES}


def device_name() -> str:
    """What this process trains on: ``cpu``, or the GPU's name, such as ``NVIDIA H200`` (not run on a GPU yet)."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def promises_bits(device: str) -> bool:
    """Whether one process gives the same bits for the same inputs on ``device``, or on what is not recorded, empty.

    On a GPU, the backward pass of attention adds up in the order in which its blocks happen to end.
    """
    return device in ("", "cpu")


def cpu_features() -> dict[str, str]:
    """Vector extensions in use: softmax and norms change with them, matrix products with MKL_CBWR."""
    import torch

    return {
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkl_cbwr": os.environ.get("MKL_CBWR", ""),
    }
