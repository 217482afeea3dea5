"""Where the time of a step goes: seconds by part, with no moment counted twice or left out."""

from __future__ import annotations

import time


class Stopwatch:
    """Runs from its making on; each ``lap`` ends a part and begins the next."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._seconds: dict[str, float] = {}

    def lap(self, part: str) -> float:
        """What ran since the last lap was ``part``; returns its seconds."""
        began, self._at = self._at, time.monotonic()
        self._seconds[f"{part}_s"] = self._seconds.get(f"{part}_s", 0.0) + self._at - began
        return self._at - began

    def take(self) -> dict[str, float]:
        """``<part>_s`` of all laps since the last call, in the order of their first ones."""
        taken, self._seconds = self._seconds, {}
        return taken
