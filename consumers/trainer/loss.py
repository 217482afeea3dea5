"""Policy-gradient losses by token, and the log-probabilities they are computed from. Pure torch.

Shape legend: N trained tokens, V vocabulary. Losses are sums, not means: the caller divides by the number
of trained tokens of the whole step, over all micro-batches and ranks.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within this: exp(20) is 5e8. Beyond it float32 overflows, and inf times a zero
advantage is not a number. A token that far off has no gradient."""
_ENTROPY_ROWS = 1024


class LossSums(NamedTuple):
    """A loss summed over N tokens, and sums of what is reported about it (detached)."""

    loss: torch.Tensor
    """Scalar with gradient: the negated objective."""
    ratio: torch.Tensor
    """Sum of the importance ratios."""
    clipped: torch.Tensor
    """Number of tokens whose ratio the loss bounded."""
    kl: torch.Tensor
    """Sum of the k3 estimates of KL(behaviour || policy)."""
    ratio_max: torch.Tensor
    """Greatest importance ratio; 0 where N is 0."""


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


def grpo(
    logprobs_N: torch.Tensor,
    behaviour_N: torch.Tensor,
    advantages_N: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> LossSums:
    """Clipped importance ratios: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), with r = policy / behaviour.

    All arguments float32 [N]; only ``logprobs_N`` has a gradient.
    Sources: PPO, arXiv 1707.06347, equation 7; GRPO by token, DeepSeekMath, arXiv 2402.03300; a wider upper
    bound (clip-higher) and the mean over tokens, DAPO, arXiv 2503.14476.
    """
    log_ratio_N = _log_ratio(logprobs_N, behaviour_N)
    ratio_N = torch.exp(log_ratio_N)
    bounded_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio_N * advantages_N, bounded_N * advantages_N).sum()
    above_N = (ratio_N > 1 + clip_high) & (advantages_N > 0)
    below_N = (ratio_N < 1 - clip_low) & (advantages_N < 0)
    return _sums(loss, log_ratio_N, ratio_N, above_N | below_N)


def reinforce(
    logprobs_N: torch.Tensor, behaviour_N: torch.Tensor, advantages_N: torch.Tensor, *, clip_high: float
) -> LossSums:
    """REINFORCE with truncated importance ratios: -min(r, 1 + clip_high) A log policy, the ratio held constant.

    Every token keeps a gradient; only its weight is bounded, and from above alone.
    All arguments float32 [N]; only ``logprobs_N`` has a gradient.
    Sources: truncated importance weights, IMPALA, arXiv 1802.01561, section 4.1; as a loss of language models,
    CISPO in MiniMax-M1, arXiv 2506.13585 (there, too, without a lower bound in practice).
    """
    log_ratio_N = _log_ratio(logprobs_N, behaviour_N)
    ratio_N = torch.exp(log_ratio_N.detach())
    weight_N = ratio_N.clamp(max=1 + clip_high)
    loss = -(weight_N * advantages_N * logprobs_N).sum()
    return _sums(loss, log_ratio_N, ratio_N, ratio_N > 1 + clip_high)


def policy_loss(
    kind: Literal["grpo", "reinforce"],
    logprobs_N: torch.Tensor,
    behaviour_N: torch.Tensor,
    advantages_N: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> LossSums:
    """The loss that ``trainer.loss`` names."""
    if kind == "grpo":
        return grpo(logprobs_N, behaviour_N, advantages_N, clip_low=clip_low, clip_high=clip_high)
    return reinforce(logprobs_N, behaviour_N, advantages_N, clip_high=clip_high)


def _log_ratio(logprobs_N: torch.Tensor, behaviour_N: torch.Tensor) -> torch.Tensor:
    return (logprobs_N - behaviour_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _sums(loss: torch.Tensor, log_ratio_N: torch.Tensor, ratio_N: torch.Tensor, clipped_N: torch.Tensor) -> LossSums:
    """With the k3 estimate of KL(behaviour || policy) from the behaviour's samples: r - 1 - log r, never negative.

    Source: J. Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
    """
    log_ratio_N, ratio_N = log_ratio_N.detach(), ratio_N.detach()
    return LossSums(
        loss=loss,
        ratio=ratio_N.sum(),
        clipped=clipped_N.sum(),
        kl=(torch.expm1(log_ratio_N) - log_ratio_N).sum(),
        ratio_max=ratio_N.max() if ratio_N.numel() else ratio_N.new_zeros(()),
    )
