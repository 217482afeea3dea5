"""What decides the bits of a step besides its inputs; recorded with each step."""

from __future__ import annotations

import importlib.metadata
import os
import platform

LIBRARIES = ("headrace", "numpy", "torch", "torchtitan")


def library_versions() -> dict[str, str]:
    """Name to version of Python and the libraries that compute."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in LIBRARIES}


def cpu_features() -> dict[str, str]:
    """Vector extensions in use: softmax and norms change with them, matrix products with MKL_CBWR."""
    import torch

    return {
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkl_cbwr": os.environ.get("MKL_CBWR", ""),
    }
