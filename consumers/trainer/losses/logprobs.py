"""Log-probabilities from logits, and how far trainer and generator are apart in them. Pure torch.

Shape legend: N trained tokens, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_ENTROPY_ROWS = 1024


class Gap(NamedTuple):
    """Difference of two log-probabilities that should be the same, over the exact tokens."""

    total: torch.Tensor
    """Sum of the absolute differences."""
    tokens: torch.Tensor
    """Number of exact tokens."""
    greatest: torch.Tensor
    """0 where there is none."""


def logprob_gap(logprobs_N: torch.Tensor, behaviour_N: torch.Tensor, exact_N: torch.Tensor) -> Gap:
    """How far trainer and generator are apart on tokens that the same weights sampled.

    logprobs_N, behaviour_N: float32 [N], the trainer's and the generator's. exact_N: bool [N], which tokens count.
    """
    gaps = (logprobs_N.detach() - behaviour_N).abs()[exact_N]
    greatest = gaps.max() if gaps.numel() else gaps.new_zeros(())
    return Gap(total=gaps.sum(), tokens=exact_N.sum(), greatest=greatest)


def token_logprobs(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the targets and entropies, of the distribution softmax(logits / temperature).

    logits_NV: any float type, computed in float32. targets_N: int64.
    Returns (log-probabilities [N] with gradient, entropies [N] without), float32.
    """
    scaled_NV = logits_NV.float()
    if temperature != 1.0:
        scaled_NV = scaled_NV / temperature
    # gather and logsumexp, rather than log_softmax: no second array of [N, V] is kept for the backward pass.
    norm_N = torch.logsumexp(scaled_NV, dim=-1)
    logprobs_N = scaled_NV.gather(-1, targets_N.unsqueeze(-1)).squeeze(-1) - norm_N
    return logprobs_N, _entropies(scaled_NV.detach(), norm_N.detach())


def _entropies(scaled_NV: torch.Tensor, norm_N: torch.Tensor) -> torch.Tensor:
    """float32 [N]: the negated sum of p log p, some rows at a time to bound the memory."""
    parts = []
    for scaled, norm in zip(torch.split(scaled_NV, _ENTROPY_ROWS), torch.split(norm_N, _ENTROPY_ROWS), strict=True):
        logprobs = scaled - norm.unsqueeze(-1)
        parts.append(-(logprobs.exp() * logprobs).sum(-1))
    return torch.cat(parts)
