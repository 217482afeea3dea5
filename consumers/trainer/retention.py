"""What of the log may go under ``log.keep = "checkpoints"``: a pure function of the ledger and the checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Everything before these sequences may go."""

    rollouts_before: int
    """Of ROLLOUTS."""
    tasks_before: int
    """Of TASKS."""


def cut(checkpoints: Iterable[int], low_waters: Mapping[int, int], lowest_open_group: int) -> Cut:
    """Where to cut so that every step after the oldest kept checkpoint can be trained again.

    checkpoints: steps that have a durable, verified checkpoint; 0, which is always kept, does not count.
    low_waters: the low-water mark of ROLLOUTS that each committed step recorded: all that later steps need lies
    above it. lowest_open_group: groups below it are trained or closed; group g is the message g + 1 of TASKS, for
    each is appended under the stream's expected last sequence. The last of them stays: where all are settled, it is
    the dispatcher's cursor.
    """
    oldest = min((step for step in checkpoints if step > 0), default=0)
    return Cut(rollouts_before=low_waters.get(oldest, 0) + 1, tasks_before=max(1, lowest_open_group))
