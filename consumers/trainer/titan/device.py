"""Which device torchtitan uses. Every module of this package that imports torchtitan imports this one before."""

from __future__ import annotations

import torch
import torchtitan.tools.utils as titan_utils

from consumers.trainer.logprob_gap import Dtype

# torchtitan's modules copy these names when they are imported; without an accelerator they would say "cuda".
if not torch.cuda.is_available():
    titan_utils.device_type = "cpu"
    titan_utils.device_module = torch.cpu

ON_CPU: bool = titan_utils.device_type == "cpu"
COMPUTES_IN: Dtype = "float32" if ON_CPU else "bfloat16"
"""Type of the arithmetic; parameters and sums over ranks are float32 on both (bfloat16 not run on a GPU yet)."""
