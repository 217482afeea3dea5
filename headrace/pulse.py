"""Whether a run's server answers, asked again and again over an open connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bus import Bus

ASK_EVERY_S = 1.0
ANSWER_S = 2.0
"""Most time for one answer."""


class Pulse:
    """Feels the server's pulse while ``feel`` runs."""

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.time) -> None:
        self._bus = bus
        self._clock = clock
        self._answers = True
        self.heard_at = clock()
        """Its last answer, seconds since the epoch."""

    async def feel(self) -> None:
        """Ask until cancelled. Raises ServerUnreachable where the connection is gone for good."""
        while True:
            asked_at = self._clock()
            if await self._bus.answers(ANSWER_S):
                self._answers, self.heard_at = True, self._clock()
            elif self._clock() - asked_at < 2 * ANSWER_S:
                self._answers = False
            # Otherwise it was this process that did not run, and nothing is known of the server.
            await asyncio.sleep(ASK_EVERY_S)

    def silent_since(self, now: float, after_s: float) -> float | None:
        """Its last answer, where it has given none for more than ``after_s`` before ``now``."""
        return None if self._answers or now - self.heard_at <= after_s else self.heard_at
