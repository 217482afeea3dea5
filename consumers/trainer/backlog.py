"""Work that is done in order, one piece after the other, in a thread of its own, while its owner goes on.

What fails there is raised to the owner, at its next call; nothing that came after it is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

PATIENCE_S = 4.0
"""How long work that is under way may still take once its owner ends for another reason; then it is left as a kill
would leave it. Whoever ends us waits 10 s at most."""


class Backlog:
    """Enter it to start its thread. ``add``, ``check`` and ``finish`` are for the thread that entered it."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._working = False
        self._ended = False
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._changed.wait_for(self._idle, PATIENCE_S)
            self._ended = True
            self._changed.notify_all()

    def add(self, act: Callable[[], None]) -> None:
        """Have ``act`` called after everything that was added before. Raises what an earlier one has raised."""
        with self._changed:
            self._raise()
            self._waiting.append(act)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what a piece of work has raised."""
        with self._changed:
            self._raise()

    def finish(self) -> None:
        """Wait until everything is done, however long; raises what a piece of work has raised."""
        with self._changed:
            self._changed.wait_for(self._idle)
            self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _idle(self) -> bool:
        return self._failure is not None or not (self._waiting or self._working)

    def _next(self) -> Callable[[], None] | None:
        """What is to be done next, once there is something; None at the end."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._ended:
                return None
            self._working = True
            return self._waiting.popleft()

    def _work(self) -> None:
        try:
            while (act := self._next()) is not None:
                act()
        except BaseException as error:  # Whatever it is, it is the owner's to handle.
            with self._changed:
                self._failure = error
                self._changed.notify_all()
