"""SIGTERM and SIGINT as an exception that abandons a step, but never splits a commit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """The process was asked to end. Not an Exception: nothing on the way may swallow it."""


class Interrupt:
    """While installed, the signals raise Interrupted at once, or at the end of a ``deferred`` block."""

    def __init__(self) -> None:
        self._deferring = False
        self._asked = False

    def install(self) -> None:
        """Take the signals; from the main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Finish what is in the block first: a commit, a checkpoint."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._asked:
            raise Interrupted

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if not self._deferring:
            raise Interrupted
