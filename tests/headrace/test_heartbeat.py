"""The heartbeat file, and what a health check says of it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace import heartbeat


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "of-a-role" / "heartbeat"
    monkeypatch.setenv(heartbeat.FILE, str(file))
    return file


def check() -> tuple[int, str]:
    """What a container's health check runs: its exit code and what it says."""
    ran = subprocess.run([sys.executable, "-m", "headrace.heartbeat"], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout.strip()


def age(said: str) -> int:
    """Seconds since the last heartbeat, as the check has them."""
    found = re.fullmatch(r"last heartbeat (\d+) s ago", said)
    assert found is not None, said
    return int(found[1])


def test_check_passes_after_a_beat(file: Path) -> None:
    heartbeat.beat()
    code, said = check()
    assert code == 0
    assert age(said) <= heartbeat.SILENT_AFTER_S


def test_check_fails_before_the_first_beat(file: Path) -> None:
    assert check() == (1, "no heartbeat yet")


def test_check_fails_when_the_last_beat_is_old(file: Path) -> None:
    heartbeat.beat()
    long_ago = time.time() - heartbeat.SILENT_AFTER_S - 5
    os.utime(file, (long_ago, long_ago))
    code, said = check()
    assert code == 1
    assert 25 <= age(said) < 25 + 60, "the 60 s are for a process that is long in coming"


def test_without_a_file_nothing_is_written_and_the_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(heartbeat.FILE, raising=False)
    heartbeat.beat()
    assert check() == (1, "HEADRACE_HEARTBEAT names no file")


async def test_process_that_is_not_well_does_not_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    beats: list[bool] = []
    monkeypatch.setattr(heartbeat, "beat", lambda: beats.append(True))
    asked = iter([False, False, True, False])

    def is_well() -> bool:
        well = next(asked, None)
        if well is None:
            raise asyncio.CancelledError
        assert not beats or not well
        return well

    with pytest.raises(asyncio.CancelledError):
        await heartbeat.keep_beating(is_well)
    assert beats == [True]
