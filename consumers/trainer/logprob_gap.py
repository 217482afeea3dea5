"""Whether trainer and generator compute the same: a run whose engines disagree is refused, not trained.

Tokens that the very weights that are updated have sampled (the exact ones) have one true log-probability, and the
trainer and the generator have each computed it. A wrong rotary base, a stale weight, or a type that is too coarse shows
in their difference, and nowhere else: the loss goes on, and the reward stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from schemas import RunError

Dtype = Literal["float32", "bfloat16"]

LEAST_TOKENS = 128
"""Exact tokens of a step below which nothing is concluded: in bfloat16 a few tokens alone may be off by the bound."""
DEFAULT_BOUNDS: dict[Dtype, float] = {"float32": 1e-3, "bfloat16": 0.1}
"""In nats, by the coarser of the types in which trainer and generator compute. Engines that agree came to 1e-5 and less
in float32; the bound for bfloat16 is a first guess, not measured."""


def default_bound(*, trainer: Dtype, generator: Dtype) -> float:
    """What is allowed, in nats, where nothing is configured, by the types in which the two compute."""
    return max(DEFAULT_BOUNDS[trainer], DEFAULT_BOUNDS[generator])


def check_logprob_gap(step: int, metrics: Mapping[str, float], *, bound: float) -> None:
    """Raise RunError where the mean gap of ``step``, in nats, is above ``bound``, or is no number.

    ``metrics``: those of the learner; without ``logprob_gap_mean``, or with too few exact tokens, nothing is said.
    """
    gap, tokens = metrics.get("logprob_gap_mean"), metrics.get("logprob_gap_tokens", 0.0)
    if gap is None or tokens < LEAST_TOKENS or gap <= bound:
        return
    raise RunError(
        f"step {step} is not committed: trainer and generator give the {tokens:.0f} tokens that the newest weights "
        f"sampled log-probabilities that differ by {gap:.3g} nats in the mean, and {bound:g} are allowed. Most likely "
        "the generator's model directory has another config.json than the trainer's (rotary positions, epsilon), its "
        "engine holds stale weights, or it computes in too coarse a type: correct that, or allow more with --set "
        "trainer.max_logprob_gap=X where the difference is known and harmless"
    )
