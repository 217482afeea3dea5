"""When most rollouts fail, the run is wrong and not unlucky: it stops with the failures' own words."""

from __future__ import annotations

from collections import deque

from schemas import Rollout, RunError

from .groups import Group

WINDOW_GROUPS = 16
"""Groups over which failures are counted; enough that a few bad tasks do not end a run."""


class FailureWatch:
    """Counts failed members over the last WINDOW_GROUPS groups. A rollout that was too late has not failed."""

    def __init__(self) -> None:
        self._recent: deque[list[Rollout]] = deque(maxlen=WINDOW_GROUPS)

    def take(self, group: Group) -> None:
        """A complete group. Raises RunError when more than half of the members in a full window failed."""
        self._recent.append([member.rollout for member in group.in_order()])
        members = [rollout for rollouts in self._recent for rollout in rollouts]
        failed = [rollout for rollout in members if rollout.error is not None and rollout.error.kind != "stale"]
        if len(self._recent) == WINDOW_GROUPS and 2 * len(failed) > len(members):
            error = failed[-1].error
            assert error is not None
            raise RunError(
                f"{len(failed)} of the last {len(members)} rollouts failed, the newest ({error.kind}) in environment "
                f"{failed[-1].env!r}: {error.message}. Play one task alone with headrace env try, mend it, go on"
            )
