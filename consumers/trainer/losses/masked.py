"""Losses that mask a token whose probability has moved too far, rather than clip its ratio. Pure torch.

The distance is that of the probabilities, |policy - behaviour|: the total variation of "this token or another one".
A ratio is large for rare tokens that hardly moved, and near 1 for likely ones that moved much.
Shape legend: N trained tokens. r is the ratio of the trained policy to the old one, A the advantage.
"""

from __future__ import annotations

import torch

from .ratios import log_ratio
from .tokens import TokenLoss, Tokens


def dppo(tokens: Tokens, *, divergence_bound: float) -> TokenLoss:
    """-r A, without the tokens that are out of bounds and would move on outwards.

    Masked: A > 0 where policy - behaviour > divergence_bound, and A < 0 where it is below -divergence_bound.
    Source: DPPO, its binary total-variation variant, arXiv 2602.04879.
    """
    moved_N = _moved(tokens)
    upwards_N = (moved_N > divergence_bound) & (tokens.advantages_N > 0)
    downwards_N = (moved_N < -divergence_bound) & (tokens.advantages_N < 0)
    return _masked(tokens, upwards_N | downwards_N)


def ipo(tokens: Tokens, *, divergence_bound: float) -> TokenLoss:
    """-r A, without the tokens that are out of bounds, whichever way the advantage points.

    Source: IPO (INTELLECT Policy Optimization), the loss of prime-rl, which has no paper of its own:
    https://docs.primeintellect.ai/prime-rl/ipo (bound 0.3 there); it simplifies DPPO, arXiv 2602.04879.
    """
    return _masked(tokens, _moved(tokens).abs() > divergence_bound)


def _moved(tokens: Tokens) -> torch.Tensor:
    return torch.exp(tokens.logprobs_N.detach()) - torch.exp(tokens.behaviour_N)


def _masked(tokens: Tokens, masked_N: torch.Tensor) -> TokenLoss:
    ratio_N = torch.exp(log_ratio(tokens.logprobs_N, tokens.old_N))
    return TokenLoss(-(ratio_N * tokens.advantages_N).masked_fill(masked_N, 0.0), masked_N)
