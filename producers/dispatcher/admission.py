"""Admission: when the next group may be issued, and how new the weights must be that play it.

A pure function of the log. The bound on open groups is what keeps staleness bounded without throwing work
away: with k = ``max_off_policy_steps`` and G groups a step, fewer than (k + 1) * G groups are open, so a group
issued now is trained at the latest k steps after the weights that it may start with.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas import AnyEvent, Closed, Control, Step


class Admission:
    """What the dispatcher knows: groups issued, groups closed, steps committed, and what people asked.

    A group is open from its task until its ``closed`` event or the step that trained it; it is credited once,
    at the decision. Crediting left-out groups only with the next step deadlocks: the batch that would commit
    that step waits for groups that may not be issued.
    """

    def __init__(self, *, max_off_policy_steps: int, groups_per_step: int, steps: int) -> None:
        """``steps``: at which the run is finished."""
        self._bound = max_off_policy_steps
        self._groups_per_step = groups_per_step
        self._steps = steps
        self._all_closed_below = 0
        self._closed_above: set[int] = set()
        self._highest_closed = -1
        self._limit: int | None = None
        self.issued = 0
        self.committed = 0
        self.paused = False

    def apply(self, event: AnyEvent | None) -> None:
        """Take one event of LEDGER or CONTROL into account; others change nothing."""
        match event:
            case Closed(group=group):
                self._close([group])
            case Step(number=number, groups=groups):
                self.committed = max(self.committed, number)
                self._close(group.group for group in groups)
            case Control(action="pause"):
                self.paused = True
            case Control(action="resume"):
                self.paused = False
            case Control(action="limit", limit=limit):
                self._limit = limit

    def _close(self, groups: Iterable[int]) -> None:
        above = [group for group in groups if group >= self._all_closed_below]
        self._closed_above.update(above)
        self._highest_closed = max(self._highest_closed, *above, -1)
        while self._all_closed_below in self._closed_above:
            self._closed_above.remove(self._all_closed_below)
            self._all_closed_below += 1

    @property
    def open(self) -> int:
        """Groups issued and not closed. A closed group that was never issued (a forged one) gives no credit."""
        closed = len(self._closed_above)
        if self._highest_closed >= self.issued:
            closed = sum(group < self.issued for group in self._closed_above)
        return max(0, self.issued - self._all_closed_below - closed)

    @property
    def finished(self) -> bool:
        """Whether the run's last step is committed."""
        return self.committed >= self._steps

    @property
    def open_limit(self) -> int:
        """Most groups open at once; the run's last steps need fewer than (k + 1) batches."""
        ahead = min(self._bound + 1, self._steps - self.committed)
        limit = ahead * self._groups_per_step
        return limit if self._limit is None else min(limit, self._limit)

    def least_version(self) -> int | None:
        """Least weights version of the next group, or None while none may be issued.

        The group can be trained in step C + open // G + 1 at the earliest, C steps being committed; weights
        k older than that step's are the oldest that are in time.
        """
        if self.paused or self.open >= self.open_limit:
            return None
        earliest = self.committed + self.open // self._groups_per_step
        return max(0, earliest - self._bound)
