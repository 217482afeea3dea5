"""What is left after ``kill -9`` of the writer, the broker or the reader, in the middle of writing.

A reader takes up to a quarter of the rollouts and then is busy, as a trainer in a step is, while the writer writes on.
When half of them are safe (acknowledged, or sent where nothing is acknowledged) the victim is killed, and started
again on what it left. A writer goes on with what was not safe; a new reader begins from the start of what is kept. Then
the reader takes all that still comes. Counted is what the writer was told is safe, before and after the kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from .roles import Marks, Role, way
from .way import Broker

LENGTH = 8192
QUIET_S = 1.5
"""Nothing for so long: nothing more will come. A way is given time to connect again besides."""
RECONNECT_S = 3.0
BUSY_S = 5.0
FLOW_S = 60.0
Victim = Literal["writer", "broker", "reader"]
VICTIMS: tuple[Victim, ...] = ("writer", "broker", "reader")


class Left(msgspec.Struct, frozen=True):
    """How many of the rollouts of one way met which fate."""

    safe_at_kill: int
    """Of which the writer knew at the kill that they are safe."""
    safe: int
    """And at the end."""
    read: int
    """Safe ones that the reader got which lived at the end."""
    twice: int
    unreadable: int
    """Records that cannot be decoded."""

    @property
    def faults(self) -> int:
        return self.safe - self.read + self.twice + self.unreadable

    def __str__(self) -> str:
        lost = self.safe - self.read
        words = [f"{lost} lost" if lost else "all"]
        words += [f"{self.twice} twice"] if self.twice else []
        words += [f"{self.unreadable} unreadable"] if self.unreadable else []
        return f"{self.read} of {self.safe}: {', '.join(words)}"


class Scene:
    """One way with a broker, a writer and a reader, of which one will be killed."""

    def __init__(self, key: str, folder: Path, count: int) -> None:
        self._key, self._count = key, count
        self.safe, self.got = Marks(count), Marks(count)
        self._broker: Broker = way(key).broker(folder)
        with contextlib.ExitStack() as undo:
            undo.callback(self._broker.stop)
            self._reader = Role("reader", key, self._broker.place, self.got)
            undo.callback(self._reader.kill)
            self._writer = Role("writer", key, self._broker.place, self.safe)
            undo.pop_all()

    def play(self, victim: Victim) -> Left:
        self._write(range(self._count))
        self._reader.tell("take", self._count // 4, BUSY_S)
        self._await_safe(self._count // 2)
        at_kill = self._kill(victim)
        if victim != "reader":
            self._reader.answer()
        self._reader.tell("take", 3 * self._count, QUIET_S + (RECONNECT_S if victim == "broker" else 0.0))
        unreadable = self._reader.answer()
        self._writer.answer()
        # What the writer sent last may come after the first silence.
        self._reader.tell("take", 3 * self._count, QUIET_S)
        unreadable += self._reader.answer()
        read = sum(bool(got and safe) for got, safe in zip(self.got, self.safe, strict=True))
        return Left(at_kill, self.safe.count, read, sum(got > 1 for got in self.got), unreadable)

    def _write(self, numbers: range | list[int]) -> None:
        self._writer.tell("prepare", LENGTH)
        self._writer.answer()
        self._writer.tell("write", numbers)

    def _await_safe(self, count: int) -> None:
        deadline = time.monotonic() + FLOW_S
        while self.safe.count < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._key}: {self.safe.count} of {count} rollouts were written in {FLOW_S:.0f} s")
            time.sleep(0.0005)

    def _kill(self, victim: Victim) -> int:
        """Kill it and start it again; what was safe at the kill."""
        if victim == "writer":
            self._writer.kill()
            safe = self.safe.count
            self._writer = Role("writer", self._key, self._broker.place, self.safe)
            self._write([number for number, known in enumerate(self.safe) if not known])
        elif victim == "broker":
            assert self._broker.pid is not None
            os.kill(self._broker.pid, signal.SIGKILL)
            safe = self.safe.count
            self._broker.restart()
        else:
            self._reader.kill()
            safe = self.safe.count
            self.got = Marks(self._count)
            self._reader = Role("reader", self._key, self._broker.place, self.got)
        return safe

    def close(self) -> None:
        self._writer.kill()
        self._reader.kill()
        self._broker.stop()


def measure(keys: list[str], root: Path, count: int) -> dict[str, dict[Victim, Left | None]]:
    """For each way and victim; None where the way has no such process."""
    found: dict[str, dict[Victim, Left | None]] = {}
    for key in keys:
        found[key] = {}
        for victim in VICTIMS:
            if victim == "broker" and not way(key).has_broker:
                found[key][victim] = None
                continue
            print(f"kill -9 of the {victim}: {way(key).name}", file=sys.stderr)
            with contextlib.closing(Scene(key, root / f"kill-{victim}-{key}", count)) as scene:
                found[key][victim] = scene.play(victim)
    return found
