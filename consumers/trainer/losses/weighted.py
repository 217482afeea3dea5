"""The loss that truncates the importance ratio as a weight: every token keeps a gradient. Pure torch.

Shape legend: N trained tokens. r is the ratio of the trained policy to the old one, A the advantage.
"""

from __future__ import annotations

import torch

from .ratios import log_ratio
from .tokens import TokenLoss, Tokens


def cispo(tokens: Tokens, *, clip_high: float) -> TokenLoss:
    """REINFORCE with truncated importance ratios: -min(r, 1 + clip_high) A log policy, the ratio held constant.

    Only a token's weight is bounded, and from above alone. ``reinforce`` is the same loss under its older name here.
    Sources: CISPO in MiniMax-M1, arXiv 2506.13585, equations 4 and 5 (there, too, without a lower bound in
    practice); truncated importance weights, IMPALA, arXiv 1802.01561, section 4.1.
    """
    ratio_N = torch.exp(log_ratio(tokens.logprobs_N.detach(), tokens.old_N))
    weight_N = ratio_N.clamp(max=1 + clip_high)
    return TokenLoss(-(weight_N * tokens.advantages_N * tokens.logprobs_N), ratio_N > 1 + clip_high)
