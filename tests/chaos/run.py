"""A run in which processes are killed again and again, and what its log says afterwards.

python -m tests.chaos.run --kills 25 --seed 7 [--engine stand-in]: all parts are real, but for the engine with
``stand-in``. Each kill comes after its role is back and a step was committed. Prints what the log proves as numbers;
exits 0 only if all of it holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bus import EmbeddedServer, connect
from headrace.models import make_tiny
from headrace.view import RunView
from headrace.watch import Watch
from tests.chaos.schedule import Kill, kills
from tests.end_to_end.conftest import CONFIG, ROOT, STAND_IN
from tests.end_to_end.logbook import Logbook, check, read_logbook

PATIENCE_S = 240.0
"""Most time that a role may take to be back, or a step to be committed."""
LAST_STEPS = 3
"""Steps that must be committed after the last kill."""
SETS = ("run.steps=100000", "supervisor.quick_deaths=1000000", "generator.lease_s=4.0", "log.keep=all")
WORDS = {
    "trainer": ("headrace", "train"),
    "dispatcher": ("headrace", "dispatch"),
    "generator-0": ("headrace", "generate", "--id", "0"),
    "generator-1": ("headrace", "generate", "--id", "1"),
}
TELEMETRY_ID = {"trainer": "trainer/trainer", "generator-0": "generator/0", "generator-1": "generator/1"}


class Chaos:
    """One ``headrace up`` and the kills that it lives through."""

    def __init__(self, folder: Path, model: Path, engine: str) -> None:
        self.folder = folder
        config = folder / "config.toml"
        config.write_text(CONFIG.format(model=model, engine=engine, generators=2))
        command = [sys.executable, "-m", "headrace", "up", str(config), "--dir", str(folder)]
        for each in SETS:
            command += ["--set", each]
        with (folder / "progress").open("w") as output:
            self.up = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=dict(os.environ))
        self.killed: Counter[str] = Counter()

    async def live(self, schedule: list[Kill]) -> None:
        """Carry out the schedule, then wait for the last steps and stop the run."""
        address = await self.until(lambda: EmbeddedServer.find(self.folder / "whole" / "nats"), "the server")
        bus = await connect(address["reader"], run="whole", role="reader", id="chaos")
        watch = Watch(bus)
        async with watch.following():
            for number, kill in enumerate(schedule, 1):
                committed = watch.view.committed
                process = await self.until(lambda kill=kill: self.back(kill.role, watch.view), f"{kill.role}")
                await self.until(lambda c=committed: watch.view.committed > c or None, f"step {committed + 1}")
                await asyncio.sleep(kill.delay_s)  # the schedule's own moment, not a wait for anything
                if not process.is_running():
                    process = await self.until(lambda kill=kill: self.back(kill.role, watch.view), kill.role)
                process.kill()
                self.killed[kill.role] += 1
                print(f"kill {number:>3}: {kill.role} after step {watch.view.committed}", flush=True)
            last = watch.view.committed + LAST_STEPS
            await self.until(lambda: watch.view.committed >= last or None, f"step {last}")
        await bus.close()

    def stop(self) -> None:
        self.up.send_signal(signal.SIGINT)
        self.up.wait(timeout=15)

    def back(self, role: str, view: RunView) -> psutil.Process | None:
        """The role's process, once it has said that it is ready."""
        for process in psutil.Process(self.up.pid).children(recursive=True):
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if role == "nats-server" and words and words[0].endswith("nats-server"):
                return process
            wanted = WORDS.get(role)
            if wanted and wanted[0] in words and all(word in words for word in wanted):
                return process if self._ready(role, process.pid, view) else None
        return None

    @staticmethod
    def _ready(role: str, pid: int, view: RunView) -> bool:
        known = view.roles.get(TELEMETRY_ID.get(role, ""))
        known = known or next(iter(view.of_role(role)), None)
        return known is not None and known.pid == pid and known.state == "ready"

    async def until(self, find: Callable[[], Any], what: str) -> Any:
        """What ``find`` gives, once it is not None. Raises AssertionError after PATIENCE_S, or when the run ends."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := find()) is None:
            if self.up.poll() is not None or time.monotonic() > deadline:
                progress = (self.folder / "progress").read_text().splitlines()[-20:]
                raise AssertionError("\n".join([f"{what} did not come back", *progress]))
            await asyncio.sleep(0.05)
        return found


def proofs(book: Logbook, replayed: dict[str, Any]) -> dict[str, Any]:
    """What the log says, as numbers. Raises AssertionError where a guarantee is broken."""
    check(book)
    trained: Counter[tuple[int, int]] = Counter()
    lag_max = 0
    for step in book.steps:
        for group in step.groups:
            for sequence, advantage in zip(group.sequences, group.advantages, strict=True):
                rollout = book.rollouts[sequence]
                trained[rollout.group, rollout.member] += 1
                if advantage is not None:
                    lag_max = max(lag_max, int((step.number - 1 - rollout.token_versions()).max()))
    assert max(trained.values()) == 1, "a rollout is in two committed steps"
    assert replayed["identical"], f"training again differs from step {replayed['first_difference']}"
    return {
        "steps": len(book.steps),
        "tasks": len(book.tasks),
        "rollouts": len(book.rollouts),
        "rollouts_in_two_steps": sum(count > 1 for count in trained.values()),
        "played_twice": len(book.rollouts) - len({(r.group, r.member) for r in book.rollouts.values()}),
        "terms": len(book.terms),
        "staleness_max": lag_max,
        "final_weights": book.steps[-1].weights_after[:16],
        "replayed_steps": replayed["steps"],
        "identical": replayed["identical"],
    }


def replay(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "headrace", "replay", "train", "whole", "--dir", str(folder), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def chaos(folder: Path, model: Path, *, count: int, seed: int, engine: str) -> dict[str, Any]:
    """One whole trial. Raises AssertionError where something does not come back or a guarantee is broken."""
    trial = Chaos(folder, model, engine)
    try:
        asyncio.run(trial.live(list(kills(count, seed))))
        trial.stop()
    finally:
        if trial.up.poll() is None:
            trial.up.kill()
    return proofs(read_logbook(folder / "whole"), replay(folder)) | {"kills": dict(trial.killed)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--engine", choices=("vllm", "stand-in"), default="vllm")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    print(f"chaos in {folder}", flush=True)
    make_tiny(folder / "tiny")
    engine = STAND_IN if arguments.engine == "stand-in" else "vllm"
    began = time.monotonic()
    found = chaos(folder, folder / "tiny", count=arguments.kills, seed=arguments.seed, engine=engine)
    print(msgspec.json.encode(found | {"wall_s": round(time.monotonic() - began)}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
