"""Hundreds of light generators against one real nats-server: what breaks first?

python -m bench.storm [GENERATORS [SECONDS]] [--json]: 200 and 30 unless given. A quarter of the generators, half of
them, and all, with weights in a folder, and all with weights of 1 MiB through NATS; then, for each, what the log says.
Each has a connection, a lease on its groups, heartbeats and a cache of its own. About 3 minutes. The generators' own
Python shares the machine with the server: look at both processor columns.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.report import Reach, Table, arguments, report
from bench.runs import say
from bus import EmbeddedServer, connect
from bus.settings import LogSettings, WeightsSettings
from headrace.models.characters import save_tokenizer
from schemas import TELEMETRY, Lifecycle
from tests.end_to_end.conftest import ROOT

from .found import Found, complaints, found, middle, percentile
from .roles import RUN, SETTINGS

PROCESSES = 4
READY_S = 90.0
STEADY_S = 8.0
"""From the time when all are ready: their first rollouts have ended then."""
END_S = 20.0
SHOWN_COMPLAINTS = 8


@contextmanager
def storm(folder: Path, count: int, kind: str) -> Iterator[tuple[EmbeddedServer, list[psutil.Process]]]:
    """Server and roles; what they were is ended with the block."""
    server = EmbeddedServer.start(folder / "nats")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        asyncio.run(_prepare(server, folder, kind))
        share = -(-count // PROCESSES)
        parts = [(first, min(share, count - first)) for first in range(0, count, share)]
        roles = [["trainer", str(count)], ["dispatcher", str(count)]]
        roles += [["generators", str(first), str(size)] for first, size in parts]
        for number, (role, *numbers) in enumerate(roles):
            command = [sys.executable, "-m", "bench.storm.roles", role, str(folder), kind, *numbers]
            with (folder / f"{role}-{number}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log))
        yield server, [psutil.Process(each.pid) for each in processes]
    finally:
        for each in processes:
            each.terminate()
        for each in processes:
            try:
                each.wait(END_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        server.stop()


async def _prepare(server: EmbeddedServer, folder: Path, kind: str) -> None:
    (folder / "tiny").mkdir()
    save_tokenizer(folder / "tiny")  # Nothing else of the model is needed by this engine.
    bus = await connect(server.address("admin"), run=RUN, role="admin", id="bench")
    await bus.apply_topology(LogSettings(), WeightsSettings(store="jetstream" if kind == "jetstream" else "file"))
    await bus.close()


async def _ready(server: EmbeddedServer, count: int) -> None:
    """Wait until every generator is ready, or for READY_S: how many were is among what is reported."""
    bus = await connect(server.address("reader"), run=RUN, role="reader", id="bench")
    ready: set[str] = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            async for logged in bus.read(TELEMETRY, kinds=(Lifecycle,), follow=True):
                match logged.event:
                    case Lifecycle(role="generator", state="ready", id=id):
                        ready.add(id)
                if len(ready) == count:
                    break
    await bus.close()


def one(count: int, kind: str, seconds: float) -> tuple[Found, float, float, list[str]]:
    """What was found; processor seconds a second of the server, and of all roles; complaints."""
    with tempfile.TemporaryDirectory(prefix="headrace-storm-", ignore_cleanup_errors=True) as root:
        folder = Path(root)
        with storm(folder, count, kind) as (server, roles):
            asyncio.run(_ready(server, count))
            time.sleep(STEADY_S)
            watched = psutil.Process(server.pid)
            before, began = (_cpu_s([watched]), _cpu_s(roles)), time.time()
            time.sleep(seconds)
            after, ended = (_cpu_s([watched]), _cpu_s(roles)), time.time()
            result = found(server, began, ended, SETTINGS.metric_interval_s)
        took = ended - began
        return result, (after[0] - before[0]) / took, (after[1] - before[1]) / took, complaints(folder)


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def main() -> None:
    sizes = [int(word) for word in arguments()]
    most, seconds = (sizes + [200, 30][len(sizes) :])[:2]
    rows: list[tuple[str | float, ...]] = []
    last: Found | None = None
    for count, kind in ((most // 4, "file"), (most // 2, "file"), (most, "file"), (most, "jetstream")):
        say(f"{count} generators, weights in {kind}")
        last, server_cpu, roles_cpu, trouble = one(count, kind, seconds)
        for line in trouble[:SHOWN_COMPLAINTS]:
            say(f"  {line}")
        rows.append(
            (
                f"{count} ({kind})", float(last.generators), last.rollouts_per_s, last.steps_per_s,
                middle(last.stored_ms), percentile(last.stored_ms, 0.99), middle(last.fan_out_ms),
                percentile(last.fan_out_ms, 0.99), float(last.played_again), last.heartbeats_share, server_cpu,
                roles_cpu, last.telemetry_h, float(len(trouble)),
            )
        )  # fmt: skip
    assert last is not None
    columns = ("generators", "ready", "rollouts/s", "steps/s", "stored ms", "stored p99", "swap ms", "swap p99",
               "played again", "heartbeats", "server CPU", "roles CPU", "telemetry h", "complaints")  # fmt: skip
    report(
        f"a storm of up to {most} generators, {seconds} s each",
        [Table(columns, rows)],
        [
            Reach("generators that were ready, of all", float(most), float(rows[-1][1]), better="higher"),
            Reach("rollouts played again for a lost lease", 0.0, sum(float(row[8]) for row in rows)),
            Reach("heartbeats that arrived, least share", 0.9, min(float(row[9]) for row in rows), better="higher"),
        ],
    )


if __name__ == "__main__":
    main()
