"""Who waits for an answer to what: so that a refusal, the loss of the connection, or a deadline ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from schemas import BusError

from .answers import Unanswered

FOR_EVER = float("inf")


class Wait:
    """A future that gets an exception where the answer will not come within the block; else it stays pending."""

    __slots__ = ("_waiting", "answer", "deadline", "subject", "timeout_s")

    def __init__(self, waiting: Waiting, subject: str, timeout_s: float) -> None:
        self._waiting = waiting
        self.subject = subject
        self.timeout_s = timeout_s

    def __enter__(self) -> asyncio.Future[Any]:
        self.answer: asyncio.Future[Any] = self._waiting.loop.create_future()
        self.deadline = self._waiting.loop.time() + self.timeout_s
        self._waiting.add(self)
        return self.answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.remove(self)
        if not self.answer.cancel() and not self.answer.cancelled():
            self.answer.exception()  # Taken note of, so that asyncio does not complain about it.


class Waiting:
    """Waits under way. One timer serves them all: one for each would be a large part of what a request costs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waits: set[Wait] = set()
        self._timer: asyncio.TimerHandle | None = None

    def for_answer(self, subject: str, timeout_s: float = FOR_EVER) -> Wait:
        """To be entered; at the end of ``timeout_s`` its future gets Unanswered."""
        return Wait(self, subject, timeout_s)

    def add(self, wait: Wait) -> None:
        self._waits.add(wait)
        if wait.timeout_s < FOR_EVER and (self._timer is None or wait.deadline < self._timer.when()):
            self._look_at(wait.deadline)

    def remove(self, wait: Wait) -> None:
        self._waits.discard(wait)

    def _look_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(deadline, self._look, deadline)

    def _look(self, now: float) -> None:
        """End the waits whose time is over."""
        self._timer = None
        for wait in self._waits:
            if wait.deadline <= now and not wait.answer.done():
                wait.answer.set_exception(Unanswered(f"no answer within {wait.timeout_s:g} s"))
        if (first := min((wait.deadline for wait in self._waits if wait.deadline > now), default=FOR_EVER)) < FOR_EVER:
            self._look_at(first)

    def refuse(self, subject: str, denial: Callable[[str], BusError]) -> bool:
        """End the waits for ``subject``, each with the ``denial`` of it as it was spelled. Whether there were any.

        The server says subjects in lower case when it refuses one.
        """
        refused = [wait for wait in self._waits if wait.subject.lower() == subject.lower()]
        for wait in refused:
            if not wait.answer.done():
                wait.answer.set_exception(denial(wait.subject))
        return bool(refused)

    def end(self, error: BusError) -> None:
        """End all waits with ``error``."""
        for wait in self._waits:
            if not wait.answer.done():
                wait.answer.set_exception(error)
