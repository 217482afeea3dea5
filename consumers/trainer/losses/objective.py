"""From what a loss says of each token to a step's loss: importance weights, KL to the start, aggregation. Pure torch.

All figures are sums over one micro-batch. The caller adds them up over all micro-batches and ranks, and divides the
loss by ``divisor``, so a step does not depend on how its documents are split.
Shape legend: N trained tokens, D documents.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .ratios import k3, log_ratio
from .registry import Aggregation
from .tokens import Loss, Tokens


class LossSums(NamedTuple):
    """A loss summed over the tokens of a micro-batch, and sums of what is reported about it (detached)."""

    loss: torch.Tensor
    """Scalar with gradient: the negated objective, not divided yet."""
    ratio: torch.Tensor
    """Sum of the importance ratios, policy to behaviour."""
    ratio_squared: torch.Tensor
    """Sum of their squares."""
    bounded: torch.Tensor
    """Number of tokens that the loss, or the cap on importance weights, held back."""
    kl: torch.Tensor
    """Sum of the k3 estimates of KL(behaviour || policy)."""
    kl_start: torch.Tensor
    """Sum of the k3 estimates of KL(policy || start), taken on the behaviour's samples; 0 where it is off."""
    ratio_max: torch.Tensor
    """Greatest importance ratio; 0 where N is 0."""


def objective(
    tokens: Tokens,
    loss: Loss,
    *,
    aggregation: Aggregation,
    tis_cap: float | None = None,
    kl_coef: float = 0.0,
    start_N: torch.Tensor | None = None,
) -> LossSums:
    """The loss of a micro-batch, to be divided by ``divisor``.

    tis_cap: truncated importance sampling. The loss then takes its ratio to the trainer's own policy, and each
    token's loss is multiplied by min(policy / behaviour, tis_cap), held constant. A step is one update, so that
    ratio is 1 in value: clipping never acts, and what corrects for stale and for differently computed
    probabilities alike is the weight.
    start_N: float32 [N], log-probabilities under the run's start weights; kl_coef times k3 is added to each token.
    Sources: F. Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025); one
    policy for the ratio and another for the weight, AReaL, arXiv 2505.24298; KL, DeepSeekMath, arXiv 2402.03300,
    equation 4.
    """
    log_ratio_N = log_ratio(tokens.logprobs_N.detach(), tokens.behaviour_N)
    ratio_N = torch.exp(log_ratio_N)
    if tis_cap is None:
        loss_N, bounded_N = loss(tokens)
    else:
        loss_N, bounded_N = loss(tokens._replace(old_N=tokens.logprobs_N.detach()))
        loss_N, bounded_N = ratio_N.clamp(max=tis_cap) * loss_N, bounded_N | (ratio_N > tis_cap)
    kl_start = ratio_N.new_zeros(())
    if start_N is not None:
        kl_N = k3(log_ratio(start_N, tokens.logprobs_N))
        loss_N, kl_start = loss_N + kl_coef * kl_N, kl_N.detach().sum()
    if aggregation == "sequence_mean":
        loss_N = loss_N / tokens.lengths_D[tokens.documents_N]
    return LossSums(
        loss=loss_N.sum(),
        ratio=ratio_N.sum(),
        ratio_squared=ratio_N.double().square().sum(),
        bounded=bounded_N.sum(),
        kl=k3(log_ratio_N).sum(),
        kl_start=kl_start,
        ratio_max=ratio_N.max() if ratio_N.numel() else ratio_N.new_zeros(()),
    )


def divisor(aggregation: Aggregation, *, tokens: int, documents: int, constant: int) -> int:
    """What the sum of all micro-batches' losses is divided by.

    tokens, documents: those trained in the step, over all micro-batches and ranks.
    ``token_mean``: every token counts the same, so long documents count more. ``sequence_mean``: every document
    counts the same, by the mean of its tokens. ``constant``: the mean over documents of the sum of their tokens,
    in units of ``constant`` tokens, so that no document's gradient depends on its length.
    """
    if aggregation == "token_mean":
        return tokens
    return documents if aggregation == "sequence_mean" else documents * constant
