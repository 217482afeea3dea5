"""What a million sampled tokens take in the log, with and without compression by the server, and what that costs."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import psutil

from bench.report import Table
from bench.runs import say
from bench.trials import Trials, turns
from bus import Bus, EmbeddedServer, connect
from bus.settings import LogSettings, WeightsSettings
from schemas import Rollout, Span, Turn
from tests.examples import rollout

Compression = Literal["none", "s2"]
WINDOW = 128
"""Publications that wait for their acknowledgement at the same time."""
VOCABULARY = 49_152


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of one kind."""

    name: str
    prompt: int
    """Tokens."""
    sampled: int
    vocabulary: int
    count: int


CONTENTS = (
    Content(name="demo: 7 + 6 tokens", prompt=7, sampled=6, vocabulary=40, count=15_000),
    Content(name="long: 200 + 8,000 tokens", prompt=200, sampled=8_000, vocabulary=VOCABULARY, count=1_000),
)


class Cost(msgspec.Struct, frozen=True):
    """Of a million sampled tokens."""

    disk_mb: float
    server_cpu_s: float
    wall_s: float


def measure() -> Table:
    """Both contents, with and without, in turn."""
    rows = []
    for content in CONTENTS:
        found: dict[Compression, list[Cost]] = {"none": [], "s2": []}
        for name in turns(list(found)):
            say(f"log size, {content.name}: {name}")
            compression: Compression = "s2" if name == "s2" else "none"
            found[compression].append(_cost(content, compression))
        for compression, costs in found.items():
            columns = zip(*(msgspec.structs.astuple(cost) for cost in costs), strict=True)
            rows.append((content.name, compression, *(Trials(list(column)) for column in columns)))
    return Table(
        ("rollouts", "log.compression", "MB a million tokens", "server CPU s a million tokens", "s a million tokens"),
        rows,
    )


def _cost(content: Content, compression: Compression) -> Cost:
    rollouts = list(_rollouts(content))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        server = EmbeddedServer.start(Path(root))
        try:
            wall_s, cpu_s = asyncio.run(_publish_all(server, compression, rollouts))
        finally:
            server.stop()
        disk = sum(path.stat().st_blocks * 512 for path in (Path(root) / "jetstream").rglob("*"))
    millions = sum(each.sampled_tokens for each in rollouts) / 1e6
    return Cost(disk / 1e6 / millions, cpu_s / millions, wall_s / millions)


async def _publish_all(
    server: EmbeddedServer, compression: Compression, rollouts: list[Rollout]
) -> tuple[float, float]:
    admin = await connect(server.address("admin"), run="bench", role="admin", id="bench")
    await admin.apply_topology(LogSettings(compression=compression), WeightsSettings())
    bus = await connect(server.address("generator"), run="bench", role="generator", id="bench")
    process, began = psutil.Process(server.pid), time.monotonic()
    before = _cpu_s(process)
    todo = iter(rollouts)
    async with asyncio.TaskGroup() as group:
        for _ in range(WINDOW):
            group.create_task(_publish(bus, todo))
    found = time.monotonic() - began, _cpu_s(process) - before
    await bus.close()
    await admin.close()
    return found


async def _publish(bus: Bus, todo: Iterator[Rollout]) -> None:
    for each in todo:
        await bus.publish(each)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _rollouts(content: Content) -> Iterator[Rollout]:
    """Tokens by Zipf's law, as those of a language are, and log-probabilities as sampling gives them."""
    chance, numbers = random.Random(0), np.random.default_rng(0)
    weights = 1 / np.arange(1, content.vocabulary + 1)
    draw = partial(numbers.choice, content.vocabulary, p=weights / weights.sum())
    for number in range(content.count):
        tokens = draw(content.prompt + content.sampled).astype("<i4")
        logprobs = -numbers.gamma(0.5, 1.0, content.sampled).astype("<f4")
        yield rollout(
            run="bench", group=number // 8, member=number % 8, index=number // 8, attempt=1, swaps_during=0,
            tokens=tokens.tobytes(), logprobs=logprobs.tobytes(), reward=chance.random(), metrics={"exact": 0.0},
            turns=[Turn(content.prompt, content.sampled, 0, "stop")], spans=[Span(4, 0, content.sampled)],
        )  # fmt: skip
