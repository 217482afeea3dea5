"""A writer or a reader as a process of its own, which does what it is told and can be killed at any moment."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from bus import keep_freed_memory
from headrace.children import tied_to

from .rollouts import Rollouts
from .way import Reader, Way, Writer

_SPAWN = multiprocessing.get_context("spawn")
ANSWER_S = 180.0
REST_EVERY_S = 5.0
WAYS = {
    "headrace": "headrace_log.HEADRACE",
    "bare": "bare_nats.BARE",
    "redis-lists": "redis_streams.LISTS",
    "redis-arrays": "redis_streams.ARRAYS",
    "redis-arrays-aof": "redis_streams.ARRAYS_IN_FILE",
    "json-lines": "json_lines.LINES",
    "zeromq": "zeromq.ZEROMQ",
}
"""Where each way is, by the name that processes are told."""


def way(key: str) -> Way:
    module, name = WAYS[key].split(".")
    found: Way = getattr(import_module(f"bench.transport.{module}"), name)
    return found


class Marks:
    """For each rollout's number, how often it happened: in memory that outlives the process that writes it."""

    def __init__(self, count: int) -> None:
        self._times = _SPAWN.RawArray(ctypes.c_uint8, count)

    def mark(self, number: int) -> None:
        self._times[number] += 1

    def __iter__(self) -> Any:
        return iter(bytes(self._times))

    @property
    def count(self) -> int:
        """Numbers to which it has happened."""
        return len(self._times) - bytes(self._times).count(0)


class Role:
    """A process with a Writer or a Reader of one way."""

    def __init__(self, kind: Literal["writer", "reader"], key: str, place: str, marks: Marks | None = None) -> None:
        self._what = f"the {kind} of {key}"
        self._pipe, theirs = _SPAWN.Pipe()
        live = write if kind == "writer" else read
        self._process: BaseProcess = _SPAWN.Process(target=live, args=(key, place, marks, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.answer()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, *order: Any) -> None:
        self._pipe.send(order)

    def answer(self, timeout_s: float = ANSWER_S) -> Any:
        """What it answers to the last order. Raises RuntimeError where it has died, or does not in time."""
        try:
            if self._pipe.poll(timeout_s):
                return self._pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"{self._what} has died: see above") from None
        raise RuntimeError(f"{self._what} has not answered in {timeout_s:.0f} s")

    def kill(self) -> None:
        """``kill -9``, and gone when it returns."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.join()
        self._pipe.close()


def write(key: str, place: str, marks: Marks | None, pipe: Connection) -> None:
    """The life of a writer. Orders: ``prepare LENGTH``; ``write NUMBERS``, answered with the time of the last one."""
    _begin()
    writer: Writer = way(key).writer(place)
    rollouts: dict[int, Rollouts] = {}
    length = 0

    def obey(order: tuple[Any, ...]) -> Any:
        nonlocal length
        match order:
            case ("prepare", int(length)):
                if length not in rollouts:
                    rollouts[length] = Rollouts(length)
            case ("write", numbers):
                writer.write(rollouts[length].of(numbers), _ignore if marks is None else marks.mark)
                return time.monotonic()
        return None

    _live(pipe, obey, writer.rest)


def _begin() -> None:
    tied_to(os.getppid())()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the benchmark, which ends us.
    keep_freed_memory()  # As the roles of a run do; it is to the advantage of every way.


def _ignore(number: int) -> None:
    pass


def read(key: str, place: str, marks: Marks | None, pipe: Connection) -> None:
    """The life of a reader.

    Orders: ``read COUNT LENGTH``, answered with the time of the last; ``clear``; ``take COUNT QUIET_S``: rollouts into
    the marks until so many were taken or none came for so long, answered with how many could not be read.
    """
    _begin()
    reader: Reader = way(key).reader(place)

    def obey(order: tuple[Any, ...]) -> Any:
        match order:
            case ("read", count, length):
                reader.read(count, length)
                return time.monotonic()
            case ("clear",):
                reader.clear()
            case ("take", count, quiet_s):
                assert marks is not None
                return _take(reader, marks, count, quiet_s)
        return None

    _live(pipe, obey, reader.rest)


def _take(reader: Reader, marks: Marks, count: int, quiet_s: float) -> int:
    unreadable = 0
    for _ in range(count):
        number = reader.take(quiet_s)
        if number is None:
            break
        if number < 0:
            unreadable += 1
        else:
            marks.mark(number)
    return unreadable


def _live(pipe: Connection, obey: Callable[[tuple[Any, ...]], Any], rest: Callable[[], None]) -> None:
    pipe.send(None)
    while True:
        try:
            while not pipe.poll(REST_EVERY_S):
                rest()
            order = pipe.recv()
        except EOFError:
            os._exit(0)  # The benchmark is gone.
        pipe.send(obey(order))
