"""Ratios of probabilities, in numbers that stay finite. Pure torch.

Shape legend: N trained tokens.
"""

from __future__ import annotations

import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within this: exp(20) is 5e8. Beyond it float32 overflows, and inf times a zero
advantage is not a number. A token that far off has no gradient."""


def log_ratio(new_N: torch.Tensor, old_N: torch.Tensor) -> torch.Tensor:
    """float32 [N]: log(new / old) of two log-probabilities, within MAX_LOG_RATIO."""
    return (new_N - old_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def k3(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """float32 [N]: r - 1 - log r, never negative; over samples of q its mean estimates KL(q || p) for r = p / q.

    Source: J. Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
    """
    return torch.expm1(log_ratio_N) - log_ratio_N
