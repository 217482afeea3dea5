"""A run in which processes are killed and stopped again and again, and what its log says afterwards.

python -m tests.chaos.run --kills 25 --seed 7 [--engine stand-in] [--pauses 1|all] [--pause-s 120]: all parts are real,
but for the engine with ``stand-in``. Each kill comes after its role is back and a step was committed. A pause stops a
process (SIGSTOP) and lets it go on (SIGCONT); meanwhile ``headrace status`` must say who is silent and since when, and
afterwards nobody may have died of it. Prints what the log proves as numbers; exits 0 only if all of it holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bus import Bus, EmbeddedServer, connect
from headrace.models import make_tiny
from headrace.watch import Watch
from tests.chaos.family import Family
from tests.chaos.schedule import UP, Kill, Stop, kills, mixed, stops
from tests.end_to_end.conftest import CONFIG, ROOT, STAND_IN
from tests.end_to_end.logbook import Logbook, check, read_logbook

PATIENCE_S = 240.0
"""Most time that a role may take to be back, or a step to be committed."""
END_S = 60.0
"""Most time in which a run ends that is asked to, on however busy a machine."""
LAST_STEPS = 3
"""Steps that must be committed after the last kill."""
HEARTBEAT_S = 1.0
"""``generator.metric_interval_s`` of the run."""
DOUBT_S = 4.0
"""The last sign of a process comes at most so long after it is stopped."""
LATE_S = 20.0
"""Its last sign comes at most so long before that: the next, a second later, may have to wait for a core."""
SETS = (
    "run.steps=100000", "supervisor.quick_deaths=1000000", "generator.lease_s=4.0", "log.keep=all",
    f"generator.metric_interval_s={HEARTBEAT_S}",
)  # fmt: skip


class Chaos:
    """One ``headrace up``, and the kills and stops that it lives through."""

    def __init__(self, folder: Path, model: Path, engine: str) -> None:
        self.folder = folder
        config = folder / "config.toml"
        config.write_text(CONFIG.format(model=model, engine=engine, generators=2))
        command = [sys.executable, "-m", "headrace", "up", str(config), "--dir", str(folder)]
        for each in SETS:
            command += ["--set", each]
        self.progress = folder / "progress"
        with self.progress.open("w") as output:
            self.up = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=dict(os.environ))
        self.killed: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        self.silence_told_s: list[float] = []
        """For each stop: seconds until status said so."""

    async def live(self, schedule: Sequence[Kill | Stop]) -> None:
        """Carry out the schedule, then wait for the last steps and stop the run."""
        bus = await self.reader()
        self.watch = Watch(bus, HEARTBEAT_S)
        self.family = Family(self.up.pid, self.watch.view)
        async with self.watch.following():
            for number, act in enumerate(schedule, 1):
                if isinstance(act, Kill):
                    await self.kill(number, act)
                else:
                    await self.stop_for_a_while(number, act)
            await self.steps(LAST_STEPS)
            await self.until(lambda: not self.family.silent() or None, "everybody's heartbeat")
        await bus.close()

    async def reader(self) -> Bus:
        """A connection to the run, once its streams are there."""
        # The configuration is written when they are.
        await self.until(lambda: (self.folder / "whole" / "config.json").exists() or None, "the run")
        address = EmbeddedServer.find(self.folder / "whole" / "nats")
        assert address is not None
        return await connect(address["reader"], run="whole", role="reader", id="chaos")

    async def kill(self, number: int, kill: Kill) -> None:
        process = await self.ready(kill.role)
        await self.steps(1)
        await asyncio.sleep(kill.delay_s)  # the schedule's own moment, not a wait for anything
        if not process.is_running():
            process = await self.ready(kill.role)
        process.kill()
        self.killed[kill.role] += 1
        print(f"{number:>3}: killed {kill.role} after step {self.watch.view.committed}", flush=True)

    async def stop_for_a_while(self, number: int, stop: Stop) -> None:
        """Raises AssertionError where status does not say so, or a process has died of it."""
        for name in self.family.names:
            await self.ready(name)
        await self.steps(1)
        await asyncio.sleep(stop.delay_s)  # the schedule's own moment, not a wait for anything
        process, before = await self.ready(stop.process), self.family.pids()
        process.suspend()
        began = time.time()
        try:
            told = await asyncio.to_thread(self.until_told, stop, process.pid, began)
            if stop.process != UP:
                line = f"{self.family.told_as(stop.process)} (process {process.pid}) is silent since"
                await self.until(lambda: line in self.progress.read_text() or None, "a line of headrace up")
            await asyncio.sleep(max(0.0, began + stop.length_s - time.time()))  # the stop's length
        finally:
            process.resume()
        print(f"{number:>3}: stopped {stop.process} for {time.time() - began:.0f} s; status: {told}", flush=True)
        self.stopped[stop.process] += 1
        await self.steps(1)
        await self.until(lambda: not self.family.silent() or None, "everybody's heartbeat")
        after = self.family.pids()
        assert after == before, f"{stop.process} was stopped, and processes died of it: {before} became {after}"

    def until_told(self, stop: Stop, pid: int, began: float) -> str:
        """Ask status until it names the process that is stopped, and since when."""
        who = self.family.told_as(stop.process)
        while time.time() < began + PATIENCE_S:
            for silence in self.status()["silent"]:
                if silence["who"] == who:
                    assert silence["pid"] == pid, f"{who} is process {pid}, and status says {silence}"
                    assert -LATE_S < silence["since"] - began < DOUBT_S, f"{silence}, since {began}"
                    self.silence_told_s.append(round(time.time() - began, 1))
                    return f"{who} (process {pid}) {silence['since'] - began:+.1f} s, {silence['why']}"
        raise AssertionError(f"{who} is stopped, and status says {self.status()}")

    def status(self) -> Any:
        command = [sys.executable, "-m", "headrace", "status", "whole", "--dir", str(self.folder), "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    async def ready(self, name: str) -> psutil.Process:
        return await self.until(lambda: self.family.ready(name), name)

    async def steps(self, count: int) -> None:
        last = self.watch.view.committed + count
        await self.until(lambda: self.watch.view.committed >= last or None, f"step {last}")

    def end(self) -> None:
        self.up.send_signal(signal.SIGINT)
        try:
            self.up.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"headrace up did not end within {END_S:g} s of SIGINT\n{self.last_lines()}") from None

    async def until(self, find: Callable[[], Any], what: str) -> Any:
        """What ``find`` gives, once it is not None. Raises AssertionError after PATIENCE_S, or when the run ends."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := find()) is None:
            if self.up.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come back\n{self.last_lines()}")
            await asyncio.sleep(0.05)
        return found

    def last_lines(self) -> str:
        return "\n".join(self.progress.read_text().splitlines()[-20:])


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


def chaos(folder: Path, model: Path, schedule: Sequence[Kill | Stop], *, engine: str) -> dict[str, Any]:
    """One whole trial. Raises AssertionError where something does not come back or a guarantee is broken."""
    trial = Chaos(folder, model, engine)
    try:
        asyncio.run(trial.live(schedule))
        trial.end()
    finally:
        if trial.up.poll() is None:
            trial.up.kill()
            trial.up.wait()
    found = proofs(read_logbook(folder / "whole"), replay(folder))
    told = {"stops": dict(trial.stopped), "silence_told_s": trial.silence_told_s} if trial.stopped else {}
    return found | {"kills": dict(trial.killed)} | told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--engine", choices=("vllm", "stand-in"), default="vllm")
    parser.add_argument("--pauses", default="1", help="how many processes are stopped for a while, or all: each one")
    parser.add_argument("--pause-s", type=float, default=120.0, help="for how long")
    arguments = parser.parse_args()
    count = None if arguments.pauses == "all" else int(arguments.pauses)
    schedule = mixed(
        list(kills(arguments.kills, arguments.seed)),
        stops(count, arguments.pause_s, arguments.seed, arguments.engine),
    )
    logging.getLogger("headrace.bus").setLevel(logging.ERROR)  # that a server is away is what was meant
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    print(f"chaos in {folder}", flush=True)
    make_tiny(folder / "tiny")
    engine = STAND_IN if arguments.engine == "stand-in" else "vllm"
    began = time.monotonic()
    found = chaos(folder, folder / "tiny", schedule, engine=engine)
    print(msgspec.json.encode(found | {"wall_s": round(time.monotonic() - began)}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
