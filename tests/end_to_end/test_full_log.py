"""A log that takes no more, for its stream's limit or the disk, while the trainer cannot take anything either."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bus import EmbeddedServer, StreamState, connect
from schemas import ROLLOUTS
from tests.disks import fill, mounted
from tests.end_to_end.conftest import ROOT, Start, Up
from tests.end_to_end.logbook import check, read_logbook
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(400)
GIB = 1024**3
LEAST_LIMIT = 2 * 6 * 4 * 2600
"""More than the run's rollouts of two steps can take, in bytes."""


def headrace(*arguments: str | Path) -> str:
    """Output of the command. Raises AssertionError where it fails."""
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status_of(up: Up) -> Any:
    return json.loads(headrace("status", "whole", "--dir", up.folder.parent, "--json"))


def rollouts_of(up: Up) -> StreamState:
    """What ROLLOUTS holds now."""

    async def state() -> StreamState:
        addresses = EmbeddedServer.find(up.folder / "nats")
        assert addresses is not None
        bus = await connect(addresses["reader"], run="whole", role="reader", id="test")
        try:
            return await bus.state(ROLLOUTS)
        finally:
            await bus.close()

    return asyncio.run(state())


def role_of(up: Up, command: str) -> psutil.Process:
    [role] = up.running(command)
    return role


def until(up: Up, holds: Callable[[], bool]) -> None:
    async def held() -> bool:
        assert up.process.poll() is None, up.progress.read_text()
        return await asyncio.to_thread(holds)

    asyncio.run(eventually(held, deadline_s=120.0))


def check_that_nothing_is_missing(up: Up, last_sequence: int) -> None:
    """``last_sequence``: of what was acknowledged while the log was full."""
    book = read_logbook(up.folder)
    check(book)
    assert sorted(book.rollouts) == list(range(1, len(book.rollouts) + 1))
    assert len(book.rollouts) > last_sequence
    assert len(book.terms) == 1, "the trainer died of it"


def test_a_full_stream_makes_publishers_wait_and_say_so_until_its_limit_is_raised(start: Start, tmp_path: Path) -> None:
    up = start(tmp_path, sets=["policy.max_off_policy_steps=1"])
    up.until("step   2/24")
    # A limit below what may be open at once is refused.
    until(up, lambda: rollouts_of(up).bytes > LEAST_LIMIT)
    generator, trainer = role_of(up, "generate"), role_of(up, "train")
    generator.suspend()
    limit = (rollouts_of(up).bytes + 2000) / GIB
    apply = ["topology", "apply", "whole", "--dir", tmp_path, "--set"]
    headrace(*apply, f"log.max_gib={limit}")
    trainer.suspend()
    generator.resume()

    def waits() -> bool:
        generators = [role for role in status_of(up)["roles"] if role["role"] == "generator"]
        return any("the stream is full" in role["note"] for role in generators)

    until(up, waits)
    full = rollouts_of(up)
    assert full.bytes <= limit * GIB
    until(up, lambda: "the stream is full" in (up.folder / "logs" / "generator-0.log").read_text())
    trainer.resume()
    headrace(*apply, "log.max_gib=4.0")
    up.end()
    check_that_nothing_is_missing(up, full.last_sequence)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=256) as disk:
        yield disk


def test_a_full_disk_is_waited_out_and_said_and_the_server_started_again_when_there_is_room(
    start: Start, disk: Path
) -> None:
    up = start(disk / "runs")
    up.until("step   2/24")
    trainer = role_of(up, "train")
    trainer.suspend()
    ballast = fill(disk)
    up.until("publishers wait; make room for 64 MiB")
    full = rollouts_of(up)

    def told() -> bool:
        return any("is full" in silence["why"] for silence in status_of(up)["silent"])

    until(up, told)
    ballast.unlink()
    up.until("stores nothing more: it is started again, there is room")
    trainer.resume()
    up.end()
    check_that_nothing_is_missing(up, full.last_sequence)
