"""How long one goes on trying: back-off between attempts, a log line now and then, a deadline if there is one."""

from __future__ import annotations

import asyncio
import logging
import time

from schemas import BusError

log = logging.getLogger("headrace.bus")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
LINE_EVERY_S = 10.0


class OutOfPatience(BusError):
    """A deadline passed; ``reason`` is what the last attempt met."""

    def __init__(self, what: str, deadline_s: float, reason: str) -> None:
        super().__init__(f"{what}: gave up after {deadline_s:g} s: {reason}")
        self.reason = reason


class Patience:
    """The attempts of one act, named ``what`` in log lines; for ever where ``deadline_s`` is None."""

    def __init__(self, what: str, *, deadline_s: float | None = None) -> None:
        self.what = what
        self._deadline_s = deadline_s
        self._began = self._said = time.monotonic()
        self._pause_s = FIRST_PAUSE_S
        self._complained = False
        self.reason = ""
        """What the last attempt met; empty before the first that failed."""

    @property
    def waited_s(self) -> float:
        """Seconds since the first attempt."""
        return time.monotonic() - self._began

    def remaining_s(self, most_s: float) -> float:
        """Time that the next attempt may take: ``most_s``, or what is left."""
        if self._deadline_s is None:
            return most_s
        return max(0.001, min(most_s, self._began + self._deadline_s - time.monotonic()))

    async def pause(self, reason: str) -> None:
        """Wait before the next attempt. Raises OutOfPatience when there is no time for one."""
        now = time.monotonic()
        pause_s = self._pause_s
        self.reason = reason
        if self._deadline_s is not None:
            left_s = self._began + self._deadline_s - now
            if left_s <= 0:
                raise OutOfPatience(self.what, self._deadline_s, reason)
            pause_s = min(pause_s, left_s)
        if now - self._said >= LINE_EVERY_S:
            self._said, self._complained = now, True
            log.warning("%s: still trying after %.0f s: %s", self.what, now - self._began, reason)
        await asyncio.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def rewarded(self) -> None:
        """Say that it worked, if it was said before that it did not."""
        if self._complained:
            log.info("%s: done after %.0f s", self.what, time.monotonic() - self._began)
