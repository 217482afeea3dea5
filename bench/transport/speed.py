"""How fast each way is, and what it costs: from the structs of a writer's process to the arrays in a reader's."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.trials import Trials, turns

from .roles import Role, way
from .rollouts import BYTES_A_TOKEN, step_rollouts
from .way import Broker


class Speed(msgspec.Struct, frozen=True):
    """What was measured of one way at one length, in the order of the repetitions."""

    seconds: list[float]
    cpu_seconds: list[list[float]]
    """Of writer, reader and broker, where there is one."""
    rollouts: int
    """In each repetition."""
    length: int

    @property
    def content_bytes(self) -> int:
        return self.rollouts * self.length * BYTES_A_TOKEN

    @property
    def mb_per_s(self) -> Trials:
        return Trials([self.content_bytes / 1e6 / took for took in self.seconds])

    @property
    def rollouts_per_s(self) -> Trials:
        return Trials([self.rollouts / took for took in self.seconds])

    @property
    def cpu_s_per_gb(self) -> Trials:
        return Trials([sum(took) / (self.content_bytes / 1e9) for took in self.cpu_seconds])

    @property
    def cpu_words(self) -> str:
        """Medians of each process, in the same unit."""
        medians = [statistics.median(took) / (self.content_bytes / 1e9) for took in zip(*self.cpu_seconds, strict=True)]
        return " + ".join(f"{each:.1f}" for each in medians)


class Pair:
    """A writer and a reader of one way with their broker, ready for orders."""

    def __init__(self, key: str, folder: Path) -> None:
        self.name = way(key).name
        self._first = 0
        self._broker: Broker = way(key).broker(folder)
        with contextlib.ExitStack() as undo:
            undo.callback(self._broker.stop)
            self._writer = Role("writer", key, self._broker.place)
            undo.callback(self._writer.kill)
            self._reader = Role("reader", key, self._broker.place)
            undo.pop_all()
        import psutil

        pids = [self._writer.pid, self._reader.pid, self._broker.pid]
        self._processes = [psutil.Process(pid) for pid in pids if pid is not None]

    def once(self, length: int, count: int) -> tuple[float, list[float]]:
        """Seconds until ``count`` rollouts are packed and acknowledged, and seconds of CPU of each process."""
        self._writer.tell("prepare", length)
        self._writer.answer()
        before = self._cpu_s()
        began = time.monotonic()
        self._reader.tell("read", count, length)
        self._writer.tell("write", range(self._first, self._first + count))
        ended = max(self._writer.answer(), self._reader.answer())
        cpu_s = [after - earlier for earlier, after in zip(before, self._cpu_s(), strict=True)]
        self._first += count
        self._reader.tell("clear")
        self._reader.answer()
        return ended - began, cpu_s

    def _cpu_s(self) -> list[float]:
        return [used.user + used.system for used in (process.cpu_times() for process in self._processes)]

    def stop(self) -> None:
        self._reader.kill()
        self._writer.kill()
        self._broker.stop()


@contextlib.contextmanager
def pairs(keys: list[str], root: Path) -> Iterator[dict[str, Pair]]:
    with contextlib.ExitStack() as undo:
        made = {}
        for key in keys:
            made[key] = Pair(key, root / key)
            undo.callback(made[key].stop)
        yield made


def measure(
    keys: list[str], lengths: list[int], root: Path, *, tokens: int, repetitions: int
) -> dict[str, list[Speed]]:
    """The speeds of each way at each length, its ways in turn; ``tokens``: in each repetition, about."""
    found: dict[str, list[Speed]] = {key: [] for key in keys}
    with pairs(keys, root) as made:
        for length in lengths:
            batch = step_rollouts(length)
            count = max(1, round(tokens / length / batch)) * batch
            results = {key: Speed([], [], count, length) for key in keys}
            for key in keys:  # Once without counting: files and memory grow, code is loaded, payloads are made.
                made[key].once(length, count)
            for number, key in enumerate(turns(keys, repetitions)):
                seconds, cpu_s = made[key].once(length, count)
                results[key].seconds.append(seconds)
                results[key].cpu_seconds.append(cpu_s)
                if number % len(keys) == 0:
                    print(f"{length} tokens: round {number // len(keys) + 1} of {repetitions}", file=sys.stderr)
            for key in keys:
                found[key].append(results[key])
    return found
