"""What a swap costs: the pause, the tokens thrown away, and what is sampled in the seconds around it.

``headrace`` fetches, verifies and stages before it pauses, and keeps every request. ``cold reload`` gives the engine a
file that is not in the page cache, with nothing prepared, and keeps every request. ``abort and restart`` prepares as
headrace does, and begins every request again. ``drain`` admits none and waits for the end of those that run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.report import Reach, Table
from bench.swap.load import BenchEngine, Load, RestartingGate, weights
from bench.swap.subjects import Subject
from bench.trials import Trials, turns
from bus import FileWeights
from producers import GeneratorSettings
from producers.generator.gate import SwapReport
from schemas import PolicySettings, Weights

WINDOW_S = 10.0
WARM_UP_S = 5.0


class Measured(NamedTuple):
    """One swap, in the middle of WINDOW_S."""

    tokens_per_s: float
    new_after_s: float = 0.0
    """From the moment at which the new weights could be had to their first use."""
    pause_s: float = 0.0
    """In which no token was sampled; for ``drain`` of the swap alone."""
    drain_s: float = 0.0
    """Of which waiting for the running step."""
    stage_s: float = 0.0
    lost: int = 0


class Ways:
    """The ways of swapping one model's weights under load."""

    def __init__(self, subject: Subject, gate: RestartingGate, load: Load, store: FileWeights, stored: Weights) -> None:
        self._subject = subject
        self._gate = gate
        self._load = load
        self._store = store
        self._stored = stored
        self._version = -1
        self.by_name: dict[str, Callable[[], Awaitable[SwapReport | None]]] = {
            "no swap": self._nothing,
            "headrace": self._headrace,
            "cold reload": self._cold,
            "abort and restart": self._restart,
            "drain": self._drain,
        }

    async def measure(self, name: str) -> Measured:
        lost, before, began = self._gate.lost, self._gate.tokens(), time.perf_counter()
        await asyncio.sleep(WINDOW_S / 2)
        asked = time.perf_counter()
        report = await self.by_name[name]()
        new_after_s = time.perf_counter() - asked
        await asyncio.sleep(max(0.0, WINDOW_S - (time.perf_counter() - began)))
        rate = (self._gate.tokens() - before) / (time.perf_counter() - began)
        if report is None:
            return Measured(rate)
        return Measured(rate, new_after_s, report.pause_s, report.drain_s, report.stage_s, self._gate.lost - lost)

    async def first(self) -> None:
        """Weights 0, the model's own."""
        await self._gate.swap(self._weights(), self._subject.folder)

    async def _nothing(self) -> None:
        return None

    async def _headrace(self) -> SwapReport:
        return await self._gate.swap(self._weights(), await self._store.fetch(self._stored))

    async def _cold(self) -> SwapReport:
        folder = await self._store.fetch(self._stored)
        _forget(folder / "model.safetensors")
        self._gate.engine.prepares = False
        try:
            return await self._gate.swap(self._weights(), folder)
        finally:
            self._gate.engine.prepares = True

    async def _restart(self) -> SwapReport:
        self._gate.restarts = True
        try:
            return await self._headrace()
        finally:
            self._gate.restarts = False

    async def _drain(self) -> SwapReport:
        await self._load.hold()
        try:
            return await self._headrace()
        finally:
            self._load.go_on()

    def _weights(self) -> Weights:
        self._version += 1
        return weights(self._version, self._subject.dtype)


def _forget(file: Path) -> None:
    """Have Linux drop the file from memory."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def measure(subject: Subject, repetitions: int, root: Path) -> tuple[Table, list[Reach]]:
    """All ways in turn. The reaches are those of the 135 M model, and said of it alone."""
    settings = GeneratorSettings(concurrency=subject.in_flight, max_model_len=512)
    gate = RestartingGate(BenchEngine(subject.folder, settings, PolicySettings(), subject.dtype, 0))
    store = FileWeights(root, 0)
    payload = (subject.folder / "model.safetensors").read_bytes()
    stored = await store.put(payload, version=1)
    announced = Weights(
        run="bench", version=1, sha256=stored.sha256, size_bytes=stored.size_bytes, location=stored.location,
        dtype=subject.dtype,
    )  # fmt: skip
    copy_s = _copying_s(payload)
    await gate.start()
    load = Load(gate, subject.in_flight, subject.tokens)
    ways = Ways(subject, gate, load, store, announced)
    await ways.first()
    await asyncio.sleep(WARM_UP_S)
    found: dict[str, list[Measured]] = {name: [] for name in ways.by_name}
    for name in turns(list(ways.by_name), repetitions):
        found[name].append(await ways.measure(name))
    await load.end()
    await gate.stop()
    size = (
        f"{len(payload) / 1e6:.0f} MB, {subject.in_flight} requests; copying it in memory takes {1e3 * copy_s:.0f} ms"
    )
    return _table(f"{subject.name} ({size})", found), _reaches(found, copy_s)


def _copying_s(payload: bytes) -> float:
    """Of copying the weights into memory that is there."""
    source, target = np.frombuffer(payload, np.uint8), np.empty(len(payload), np.uint8)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        target[:] = source
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _table(title: str, found: dict[str, list[Measured]]) -> Table:
    columns = (
        title,
        "pause ms",
        "of which the running step",
        "staging ms",
        "new weights after ms",
        "tokens lost",
        "tokens/s",
    )
    undisturbed = statistics.median(each.tokens_per_s for each in found["no swap"])

    def row(name: str, swaps: list[Measured]) -> tuple[str | Trials, ...]:
        rate = Trials([each.tokens_per_s for each in swaps])
        shares = f"{rate} ({rate.median / undisturbed:.2f} x)"
        if name == "no swap":
            return (name, "", "", "", "", "", shares)
        ms = [(each.pause_s, each.drain_s, each.stage_s, each.new_after_s) for each in swaps]
        times = [Trials([1e3 * value for value in column]) for column in zip(*ms, strict=True)]
        return (name, *times, Trials([float(each.lost) for each in swaps]), shares)

    return Table(columns, [row(name, swaps) for name, swaps in found.items()])


def _reaches(found: dict[str, list[Measured]], copy_s: float) -> list[Reach]:
    ours, undisturbed = found["headrace"], found["no swap"]
    allowed = statistics.median(each.drain_s for each in ours) + 0.05 + 2 * copy_s
    share = statistics.median(each.tokens_per_s for each in ours) / statistics.median(
        each.tokens_per_s for each in undisturbed
    )
    return [
        Reach(
            "pause, s: the running step, 50 ms and twice a copy in memory", allowed,
            statistics.median(each.pause_s for each in ours),
        ),
        Reach("tokens lost", 0, float(max(each.lost for each in ours))),
        Reach("tokens/s in the 10 s around a swap, of undisturbed", 0.9, share, "higher"),
    ]  # fmt: skip
