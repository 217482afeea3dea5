"""What a storm's log says of it, after it has become steady."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median

import msgspec

from bus import EmbeddedServer, connect
from schemas import LEDGER, ROLLOUTS, TELEMETRY, Lifecycle, Metric, Rollout, Step, Weights

from .roles import RUN

TROUBLE = ("WARN", "ERROR", "[WRN]", "[ERR]", "Error", "late by", "Slow Consumer")
USUAL = ("Plaintext passwords", "Maximum payloads")
"""What every embedded server says when it starts."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one storm."""

    rollouts_per_s: float
    steps_per_s: float
    stored_ms: list[float]
    """For each rollout, from its end to its storage."""
    fan_out_ms: list[float]
    """For each swap, from the announcement of a version to its use."""
    played_again: int
    """Rollouts of groups whose lease was lost."""
    heartbeats_share: float
    """Of the heartbeats that were due, those that arrived."""
    generators: int
    """That were ready."""
    telemetry_h: float
    """Hours until TELEMETRY is full, and drops its oldest: then `status` forgets how roles began."""


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def found(server: EmbeddedServer, began: float, ended: float, interval_s: float) -> Found:
    """Of what was stored from ``began`` to ``ended``, in seconds since the epoch."""
    return asyncio.run(_found(server, began, ended, interval_s))


async def _found(server: EmbeddedServer, began: float, ended: float, interval_s: float) -> Found:
    bus = await connect(server.address("reader"), run=RUN, role="reader", id="found")
    stored_ms, played_again, steps, announced = [], 0, 0, dict[int, float]()
    fan_out_ms, beats, told, ready = [], 0, 0, set[str]()
    telemetry = await bus.state(TELEMETRY)
    async for logged in bus.read(ROLLOUTS, kinds=(Rollout,)):
        if isinstance(logged.event, Rollout) and began <= logged.time <= ended:
            timings = logged.event.timings
            stored_ms.append(1000 * (logged.time - timings.started_at - timings.total_s))
            played_again += logged.event.attempt > 1
    async for logged in bus.read(LEDGER):
        steps += isinstance(logged.event, Step) and began <= logged.time <= ended
        if isinstance(logged.event, Weights):
            announced[logged.event.version] = logged.time
    async for logged in bus.read(TELEMETRY):
        told += began <= logged.time <= ended
        match logged.event:
            case Lifecycle(role="generator", state="ready", id=id):
                ready.add(id)
            case Lifecycle(role="generator", state="swapped", version=int() as version):
                if began <= announced.get(version, 0.0) <= ended:
                    fan_out_ms.append(1000 * (logged.time - announced[version]))
            case Metric(role="generator") if began <= logged.time <= ended:
                beats += 1
    await bus.close()
    seconds = ended - began
    return Found(
        rollouts_per_s=len(stored_ms) / seconds,
        steps_per_s=steps / seconds,
        stored_ms=stored_ms,
        fan_out_ms=fan_out_ms,
        played_again=played_again,
        heartbeats_share=beats * interval_s / max(1.0, len(ready) * seconds),
        generators=len(ready),
        telemetry_h=(TELEMETRY.max_bytes or 0) / (telemetry.bytes / max(1, telemetry.messages) * told / seconds) / 3600,
    )


def complaints(folder: Path) -> list[str]:
    """Lines of the server's and the roles' logs that tell of trouble, without their times."""
    lines = []
    for path in [*folder.glob("*.log"), folder / "nats" / "logs" / "nats.log"]:
        words = path.read_text(errors="replace").splitlines() if path.exists() else []
        lines += [
            f"{path.stem}: {line}"
            for line in words
            if any(word in line for word in TROUBLE) and not any(word in line for word in USUAL)
        ]
    return lines


def middle(values: list[float]) -> float:
    return median(values) if values else float("nan")
