"""Signals that ask a trainer to end, as an exception that abandons a step, but never splits a commit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RANK_LOST = signal.SIGUSR1
"""How rank 0 is asked to end because another rank has failed: in order, but it counts as a death."""


class Interrupted(BaseException):
    """The process was asked to end. Not an Exception: nothing on the way may swallow it."""


class Interrupt:
    """While installed, the signals raise Interrupted once: at once, or at the end of a ``deferred`` block."""

    def __init__(self, *, patience_s: float = 4.0) -> None:
        """``patience_s``: a deferred block that takes longer after a signal is broken off, as a kill would.

        A commit may wait for a server that is away, for as long as it is. Whoever ends us waits 10 s at most.
        """
        self._patience_s = patience_s
        self._deferring = False
        self._patience: threading.Timer | None = None
        self._out_of_patience = False
        self._raised = False
        self.number: int | None = None
        """The signal that came first; None while none has come."""

    def install(self) -> None:
        """Take the signals; from the main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT, RANK_LOST):
            signal.signal(number, self._on_signal)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Finish what is in the block first: a commit, a checkpoint."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
            if self._patience is not None:
                self._patience.cancel()
        self.check()

    def check(self) -> None:
        """Raise Interrupted where it was asked for: an exception raised by a signal may have got lost.

        That happens in a finalizer, where Python reports exceptions and goes on.
        """
        if self.number is not None:
            self._raised = True
            raise Interrupted

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        if not self._deferring or self._out_of_patience:
            if not self._raised:  # A second one must not break into the orderly end that the first began.
                self.check()
        elif self._patience is None:
            self._patience = threading.Timer(self._patience_s, self._break_off, [number])
            self._patience.daemon = True
            self._patience.start()

    def _break_off(self, number: int) -> None:
        """Called in a thread of its own: the signal comes again, to the main one, and is deferred no more."""
        self._out_of_patience = True
        if self._deferring:
            signal.pthread_kill(threading.main_thread().ident or 0, number)
