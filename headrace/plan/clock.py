"""A virtual clock: seconds that pass only from one due act to the next."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable


class Clock:
    """Acts in the order of their times, and at one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0
        """Virtual seconds since the start."""

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Do ``act`` at ``time``, which has not passed."""
        heapq.heappush(self._due, (time, next(self._numbers), act))

    @property
    def next_at(self) -> float:
        """When something is due next; infinity where nothing is."""
        return self._due[0][0] if self._due else math.inf

    def step(self) -> None:
        """Go on to the next act, and do it. Something must be due."""
        self.now, _, act = heapq.heappop(self._due)
        act()

    def run_until(self, time: float) -> None:
        """Do all that is due until ``time``, and go on to it."""
        while self.next_at <= time:
            self.step()
        self.now = time
