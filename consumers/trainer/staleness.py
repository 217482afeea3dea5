"""Which spans are fresh enough to be trained. The trainer alone guarantees the bound.

All tokens of a span were sampled by one version, and a rollout has few spans: plain numbers, where arrays would take
longer.
"""

from __future__ import annotations

from collections.abc import Sequence


class FutureVersion(ValueError):
    """A token claims weights that do not exist yet."""


def lags(versions: Sequence[int], step: int) -> list[int]:
    """Off-policy steps in step ``step`` of tokens of each version: the weights it updates less those that sampled it.

    None is below 0: raises FutureVersion where one would be.
    """
    if versions and max(versions) > step - 1:
        raise FutureVersion(f"a token was sampled by weights {max(versions)}, but step {step} updates {step - 1}")
    return [step - 1 - version for version in versions]


def fresh(versions: Sequence[int], *, step: int, bound: int, stale: str) -> list[bool]:
    """For each span of one rollout, by its version: whether step ``step`` may train its tokens.

    ``stale = "drop"`` takes all of a rollout or nothing; ``"mask"`` takes the spans within the bound.
    """
    within = [lag <= bound for lag in lags(versions, step)]
    return [False] * len(within) if stale == "drop" and not all(within) else within
