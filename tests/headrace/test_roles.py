"""How a role's process ends, seen by whoever has started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.server import environment_for
from tests.headrace.conftest import GoingOn
from tests.waiting import eventually


def dispatcher(run: GoingOn, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "dispatch", str(run.folder.path / "config.json")]
    with log.open("wb") as output:
        environment = os.environ | environment_for(run.server.address("dispatcher"))
        return subprocess.Popen(command, stderr=output, env=environment)


def says(log: Path, words: str) -> bool:
    return words in log.read_text()


async def until_it_listens(log: Path) -> None:
    async def listens() -> bool:
        return says(log, "next group")

    await eventually(listens)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_role_that_a_signal_ended_has_not_finished(
    going_on: GoingOn, tmp_path: Path, number: signal.Signals
) -> None:
    process = dispatcher(going_on, tmp_path / "log")
    await until_it_listens(tmp_path / "log")
    process.send_signal(number)
    assert process.wait() == 128 + number


def ask_to_stop(run: GoingOn) -> None:
    command = [sys.executable, "-m", "headrace", "stop", "demo", "--dir", str(run.folder.path.parent)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def test_role_that_a_person_stopped_is_done(going_on: GoingOn, tmp_path: Path) -> None:
    process = dispatcher(going_on, tmp_path / "log")
    await until_it_listens(tmp_path / "log")
    while process.poll() is None:  # It begins to listen for it at about the time of that line.
        ask_to_stop(going_on)
    assert process.wait() == 0
