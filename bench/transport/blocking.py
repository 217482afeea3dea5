"""How long the trainer's thread is held up by transport, while its NATS thread fetches ahead.

The supply is there: ROLLOUTS holds all of them before. A step takes a batch from the inbox, packs it, computes for
``COMPUTE_S`` on one thread, as a learner does that releases Python's lock most of the time, and settles. Counted is
what the thread spends in the inbox: each ``get`` and ``ack_through``, and their sum for each step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from bus import Delivery

from .headrace_log import LogReader, NatsServer
from .roles import Role
from .rollouts import GROUP, step_rollouts

COMPUTE_S = 0.2
PRODUCT = 700
"""Rows of the matrices that are multiplied: some 10 ms without Python's lock."""
T = TypeVar("T")


class Blocked(msgspec.Struct, frozen=True):
    """Seconds, in order."""

    length: int
    calls: list[float]
    """Of each call that the trainer makes."""
    steps: list[float]
    """Of all of a step's."""

    def call_ms(self, percentile: float) -> float:
        return 1e3 * float(np.percentile(self.calls, percentile))

    def step_ms(self, percentile: float) -> float:
        return 1e3 * float(np.percentile(self.steps, percentile))


class TimedInbox:
    """An Inbox that notes how long its caller waits."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self.calls: list[float] = []

    def get(self, timeout_s: float) -> Delivery | None:
        found: Delivery | None = self._timed(lambda: self._inbox.get(timeout_s))
        return found

    def ack_through(self, sequence: int) -> None:
        self._timed(lambda: self._inbox.ack_through(sequence))

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return call()
        finally:
            self.calls.append(time.perf_counter() - began)


def compute(seconds: float) -> None:
    """What a learner does for so long: products that release Python's lock, and some Python between them."""
    a = np.ones((PRODUCT, PRODUCT), np.float32)
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        a = a @ a / np.float32(PRODUCT)


def measure(root: Path, length: int, steps: int) -> Blocked:
    server = NatsServer(root / f"blocking-{length}")
    reader: LogReader | None = None
    try:
        count = step_rollouts(length) * (steps + 1)
        writer = Role("writer", "headrace", server.place)
        try:
            writer.tell("prepare", length)
            writer.answer()
            writer.tell("write", range(count))
            writer.answer()
        finally:
            writer.kill()
        reader = LogReader(server.place)
        timed = TimedInbox(reader.inbox)
        reader.inbox = timed  # type: ignore[assignment]
        return _steps(reader, timed, length, steps)
    finally:
        if reader is not None:
            reader.close()
        server.stop()


def _steps(reader: LogReader, timed: TimedInbox, length: int, steps: int) -> Blocked:
    found = Blocked(length, [], [])
    reader.step(step_rollouts(length) // GROUP)  # Not counted: it waits for the first fetch.
    timed.calls.clear()
    compute(COMPUTE_S)
    for number in range(steps):
        reader.step(step_rollouts(length) // GROUP)
        found.calls.extend(timed.calls)
        found.steps.append(sum(timed.calls))
        timed.calls.clear()
        compute(COMPUTE_S)
        if number % 10 == 9:
            print(f"{length} tokens: step {number + 1} of {steps}", file=sys.stderr)
    return found
