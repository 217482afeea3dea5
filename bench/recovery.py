"""From SIGKILL of the trainer to the next committed step, against the time that starting and replaying must take.

python -m bench.recovery [KILLS]: the stand-in engine, all else real. A restart that waited for a timeout would show.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import Reach, arguments, report
from headrace.models import make_tiny
from headrace.watch import Watch
from tests.chaos.family import Family
from tests.chaos.run import HEARTBEAT_S, Chaos
from tests.end_to_end.conftest import STAND_IN

STARTING = "import consumers.trainer.titan.learner, headrace.training"


def start_s() -> float:
    """Seconds until a trainer's process has loaded what it needs."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", STARTING], check=True)
    return time.monotonic() - began


async def trials(chaos: Chaos, count: int) -> list[tuple[float, int, float]]:
    """For each kill: seconds to the next committed step, steps replayed, seconds of one step."""
    bus = await chaos.reader()
    watch, found = Watch(bus, HEARTBEAT_S), []
    family = Family(chaos.up.pid, watch.view)
    async with watch.following():
        for _ in range(count):
            process = await chaos.until(lambda: family.ready("trainer"), "the trainer")
            committed = watch.view.committed
            await chaos.until(lambda c=committed: watch.view.committed > c + 2 or None, "three steps")
            committed, killed_at = watch.view.committed, time.monotonic()
            process.kill()
            await chaos.until(lambda c=committed: watch.view.committed > c or None, "the next step")
            train_s = statistics.mean(step.metrics["train_s"] for step in watch.view.steps)
            replayed = committed % 8  # the configuration has a checkpoint every 8 steps
            found.append((time.monotonic() - killed_at, replayed, train_s))
    await bus.close()
    return found


def main() -> None:
    count = int(next(iter(arguments()), 5))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        folder = Path(root)
        make_tiny(folder / "tiny")
        starting_s = statistics.median(start_s() for _ in range(3))
        chaos = Chaos(folder, folder / "tiny", STAND_IN)
        try:
            found = asyncio.run(trials(chaos, count))
            chaos.end()
        finally:
            chaos.up.kill()
            chaos.up.wait()
    ratios = [took / (starting_s + replayed * train_s) for took, replayed, train_s in found]
    report(
        f"{count} kills of the trainer",
        [
            ("starting a trainer's process", f"{starting_s:.1f} s"),
            ("kill to next step, median", f"{statistics.median(took for took, _, _ in found):.1f} s"),
            ("steps replayed", ", ".join(str(replayed) for _, replayed, _ in found)),
        ],
        [Reach("kill to next step / (start + replay)", 3.0, statistics.median(ratios))],
    )


if __name__ == "__main__":
    main()
