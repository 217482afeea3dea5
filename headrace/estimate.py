"""What plays of held-out tasks say of a policy: a mean with its 95 % confidence interval, and pass@k.

Tasks are the independent draws, plays of one task are not: means are over tasks, of each task's mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Literal

import msgspec

Z = 1.959964
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over tasks and its 95 % confidence interval."""

    mean: float
    low: float | None
    """Null where one task alone says nothing of the spread."""
    high: float | None
    method: Literal["wilson", "normal"]
    """``wilson`` where every figure is 0 or 1, ``normal`` for all others."""


def estimate(figures: Sequence[Sequence[float]]) -> Estimate:
    """The mean over tasks. ``figures``: for each task those of its plays, at least one.

    0/1 figures get Wilson's score interval with as many trials as there are tasks, however often each was played: so
    it is right for one play each, and wider than it need be for several. All others get the normal interval of the
    mean of the tasks' means. Source: E. B. Wilson, JASA 22 (1927).
    """
    means = [fmean(plays) for plays in figures]
    mean, n = fmean(means), len(means)
    if all(figure in (0.0, 1.0) for plays in figures for figure in plays):
        low, high = wilson(mean, n)
        return Estimate(mean=mean, low=low, high=high, method="wilson")
    if n < 2:
        return Estimate(mean=mean, low=None, high=None, method="normal")
    half = Z * math.sqrt(variance(means) / n)
    return Estimate(mean=mean, low=mean - half, high=mean + half, method="normal")


def wilson(share: float, trials: int) -> tuple[float, float]:
    """The interval of a ``share`` of successes in so many ``trials``, at least one."""
    spread = Z * Z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at(k: int, tasks: Sequence[tuple[int, int]]) -> float | None:
    """Probability that one of ``k`` plays passes, without bias; mean over the tasks that were played ``k`` times.

    ``tasks``: plays, and how many of them passed. None where no task was played so often.
    Source: Chen et al., arXiv 2107.03374, section 2.1: 1 - C(n - c, k) / C(n, k).
    """
    chances = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in tasks if n >= k]
    return fmean(chances) if chances else None
