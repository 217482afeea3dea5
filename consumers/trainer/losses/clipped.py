"""Losses that clip the importance ratio: a token whose ratio is out of bounds gains nothing more. Pure torch.

Shape legend: N trained tokens, D documents. r is the ratio of the trained policy to the old one, A the advantage.
"""

from __future__ import annotations

import torch

from .ratios import MAX_LOG_RATIO, log_ratio
from .tokens import TokenLoss, Tokens


def grpo(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLoss:
    """Clipped ratios: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) of each token.

    The paper averages within each response first (``trainer.aggregation = "sequence_mean"``) and has one clip bound
    (0.2). Here the mean is over all tokens unless asked otherwise, and the upper bound is the wider one of DAPO.
    Sources: DeepSeekMath, arXiv 2402.03300, equation 3, whose KL term is ``trainer.kl_coef``; PPO, arXiv 1707.06347,
    equation 7.
    """
    return _clipped(torch.exp(log_ratio(tokens.logprobs_N, tokens.old_N)), tokens.advantages_N, clip_low, clip_high)


def dapo(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLoss:
    """As ``grpo``, with the mean over all tokens of the step, and the upper bound wider than the lower.

    What else DAPO says is not a matter of the loss: groups that agree are always closed (its dynamic sampling), and
    ``trainer.truncated = "mask"`` is its overlong filtering.
    Source: DAPO, arXiv 2503.14476, equations 8 (token mean) and 10 (clip-higher), section 3.4.
    """
    return grpo(tokens, clip_low=clip_low, clip_high=clip_high)


def dr_grpo(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLoss:
    """As ``grpo``, the sum over a document divided by a constant rather than by its length.

    The paper takes the advantage without the standard deviation as well: ``trainer.advantage = "mean"``.
    Source: Dr. GRPO, arXiv 2503.20783, section 3.
    """
    return grpo(tokens, clip_low=clip_low, clip_high=clip_high)


def gspo(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLoss:
    """One ratio for a document, clipped as a whole: s = (product of its tokens' ratios) ** (1 / its length).

    Written by token, as s held constant times the policy over itself held constant: value and gradient are those of
    -min(s A, clip(s) A) by document, and weights by token stay possible. The paper's bounds are 3e-4 and 4e-4, far
    below those of ratios by token; rollouts that are some steps old need wider ones.
    Source: GSPO, arXiv 2507.18071, equations 5 and 7, by token equations 13 and 14.
    """
    log_ratios_N = log_ratio(tokens.logprobs_N.detach(), tokens.old_N)
    totals_D = torch.zeros(len(tokens.lengths_D), device=log_ratios_N.device)
    totals_D = totals_D.index_add(0, tokens.documents_N, log_ratios_N)
    means_N = (totals_D / tokens.lengths_D)[tokens.documents_N]
    own_N = tokens.logprobs_N - tokens.logprobs_N.detach()
    ratio_N = torch.exp((means_N + own_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return _clipped(ratio_N, tokens.advantages_N, clip_low, clip_high)


def _clipped(ratio_N: torch.Tensor, advantages_N: torch.Tensor, clip_low: float, clip_high: float) -> TokenLoss:
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = -torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    above_N = (ratio_N > 1 + clip_high) & (advantages_N > 0)
    below_N = (ratio_N < 1 - clip_low) & (advantages_N < 0)
    return TokenLoss(loss_N, above_N | below_N)
