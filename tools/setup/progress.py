"""What set-up does now, for whoever waits."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import IO


class Progress:
    """What is done now: one line that is rewritten on a terminal, and plain lines elsewhere.

    The first word of a text is its phase: a plain line comes when that changes, and each ``quiet_s`` seconds.
    """

    def __init__(self, out: IO[str], clock: Callable[[], float] = time.monotonic, quiet_s: float = 10.0) -> None:
        self._out, self._clock, self._quiet_s = out, clock, quiet_s
        self._live = out.isatty()
        self._began = clock()
        self._phase, self._said_at = "", self._began

    def doing(self, what: str, *, detail: str = "") -> None:
        now, text, phase = self._clock(), f"{what} {detail}".rstrip(), what.split(" ", 1)[0]
        if self._live:
            width = shutil.get_terminal_size().columns - 12
            self._out.write(f"\r\x1b[K{self._elapsed(now)} {text[:width]}")
            self._out.flush()
        elif phase != self._phase or now - self._said_at >= self._quiet_s:
            self.say(text)
            self._phase, self._said_at = phase, now

    def say(self, text: str) -> None:
        """A line that stays."""
        self._out.write(f"{chr(13)}{chr(27)}[K" if self._live else "")
        self._out.write(f"{self._elapsed(self._clock())} {text}\n")
        self._out.flush()

    def _elapsed(self, now: float) -> str:
        seconds = int(now - self._began)
        return f"[{seconds // 60}:{seconds % 60:02d}]"
