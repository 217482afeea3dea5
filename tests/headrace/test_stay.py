"""Roles that have nothing more to do and, with ``--stay``, wait to be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace import heartbeat
from headrace.server import environment_for
from tests.headrace.conftest import GoingOn
from tests.waiting import eventually

STAYS = "headrace.stay"


def start(run: GoingOn, log: Path, *options: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "dispatch", str(run.folder.path / "config.json"), *options]
    environment = os.environ | environment_for(run.server.address("dispatcher")) | variables
    with log.open("wb") as output:
        return subprocess.Popen(command, stderr=output, env=environment)


async def stays(process: subprocess.Popen[bytes]) -> None:
    async def changed() -> bool:
        assert process.poll() is None
        return STAYS in psutil.Process(process.pid).cmdline()

    await eventually(changed)


def ask_to_stop(run: GoingOn) -> None:
    command = [sys.executable, "-m", "headrace", "stop", "demo", "--dir", str(run.folder.path.parent)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def test_role_that_is_done_stays_until_it_is_stopped(going_on: GoingOn, tmp_path: Path) -> None:
    log, beats = tmp_path / "log", tmp_path / "beats"
    process = start(going_on, log, "--stay", **{heartbeat.FILE: str(beats)})

    async def listens() -> bool:
        return "next group" in log.read_text()

    await eventually(listens)

    async def asked() -> bool:  # It begins to listen for it at about the time of that line.
        ask_to_stop(going_on)
        return STAYS in psutil.Process(process.pid).cmdline()

    await eventually(asked)
    assert "done: waiting to be stopped" in log.read_text()
    beats.unlink()

    async def beats_on() -> bool:
        return beats.exists()

    await eventually(beats_on)
    assert psutil.Process(process.pid).memory_info().rss < 64 * 1024**2
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def become_one_that_stays(code: int, beats: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"from headrace.stay import stay; stay({code})"]
    return subprocess.Popen(command, env=os.environ | {heartbeat.FILE: str(beats)})


async def test_role_that_must_not_be_started_again_stays_silent(tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    process = become_one_that_stays(3, beats)
    await stays(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 3
    assert not beats.exists()


@pytest.mark.parametrize("options", [(), ("--stay",)], ids=["plain", "stay"])
async def test_role_that_a_signal_ends_does_not_stay(
    going_on: GoingOn, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log = tmp_path / "log"
    process = start(going_on, log, *options)

    async def listens() -> bool:
        return "next group" in log.read_text()

    await eventually(listens)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
