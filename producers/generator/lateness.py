"""When a rollout in play is given up: the bound on staleness, held in flight."""

from __future__ import annotations


def too_late(oldest: int | None, *, version: int, bound: int) -> bool:
    """Whether no step can train a rollout whose oldest token is of weights ``oldest``, once ``version`` is in place.

    The next step updates weights ``version`` at the earliest. ``oldest``: None where it has no token yet.
    """
    return oldest is not None and version - oldest > bound
