"""What a signal that stops one process does to the end of the others: nothing. (That a run goes on: tests/chaos.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bus import BusRole, EmbeddedServer, connect
from headrace.config import load
from headrace.server import environment_for
from tests.end_to_end.conftest import CONFIG, ROOT, STAND_IN, Start
from tests.end_to_end.test_interruption import assert_gone
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)
END_S = 30.0
"""In which each process ends after SIGTERM: within 10 s where it has a core, and here others want it too."""


@pytest.mark.parametrize("word", ["train", "dispatch", "generate", "nats-server"])
def test_sigterm_of_up_ends_everything_in_time_while_one_process_is_stopped(
    start: Start, tmp_path: Path, word: str
) -> None:
    up = start(tmp_path)
    up.until("step   2/24")
    family = up.descendants()
    [stopped] = up.running(word)
    stopped.suspend()
    up.process.terminate()
    up.process.wait(timeout=END_S)
    assert_gone(family)
    assert "the same command goes on with it" in up.progress.read_text()


class Lone:
    """Roles on their own, each a process, against a server that nobody supervises."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG.format(model=model, engine=STAND_IN, generators=1))
        self.server = EmbeddedServer.start(folder / "nats")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: BusRole, command: str) -> None:
        words = [sys.executable, "-m", "headrace", command, str(self.config), "--dir", str(self.folder)]
        with (self.folder / f"{command}.log").open("wb") as output:
            self.processes[command] = subprocess.Popen(
                words, cwd=ROOT, stdout=output, stderr=output,
                env=os.environ | environment_for(self.server.address(role)),
            )  # fmt: skip

    def said(self, command: str) -> str:
        return (self.folder / f"{command}.log").read_text()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.server.stop()


@pytest.fixture
def lone(tmp_path: Path, model: Path) -> Iterator[Lone]:
    lone = Lone(tmp_path, model)
    yield lone
    lone.end()


async def test_roles_on_their_own_end_in_time_while_their_server_is_stopped(lone: Lone) -> None:
    config = load(lone.config)
    bus = await connect(lone.server.address("topology"), run=config.run.name, role="topology", id="test")
    await bus.apply_topology(config.log, config.weights)
    await bus.close()
    roles: list[tuple[BusRole, str]] = [("dispatcher", "dispatch"), ("generator", "generate"), ("trainer", "train")]
    for role, command in roles:
        lone.start(role, command)

    async def committed() -> bool:
        assert all(process.poll() is None for process in lone.processes.values())
        return "step 3:" in lone.said("train")

    await eventually(committed, deadline_s=120.0)
    psutil.Process(lone.server.pid).suspend()

    async def waiting() -> bool:
        return "still trying after" in lone.said("generate")

    await eventually(waiting)
    for process in lone.processes.values():
        process.terminate()
    began = time.monotonic()
    for command, process in lone.processes.items():
        process.wait(timeout=max(0.1, began + END_S - time.monotonic()))
        assert process.returncode == 128 + signal.SIGTERM, lone.said(command)
        assert "Traceback" not in lone.said(command)
