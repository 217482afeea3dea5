from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus import connect
from bus.settings import LogSettings, WeightsSettings
from headrace.folder import RunFolder
from headrace.hosted_server import HostedServer, Refusals
from schemas import TASKS, GroupTask
from tests.disks import fill, mounted
from tests.examples import task
from tests.waiting import eventually


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=96) as disk:
        yield disk


@asynccontextmanager
async def kept(place: Path, say: Callable[[str], None]) -> AsyncIterator[HostedServer]:
    """The server of a run in ``place``, kept alive for the length of the block."""
    hosted = HostedServer(RunFolder(place / "demo"))
    keeping = asyncio.create_task(hosted.keep(say))
    try:
        yield hosted
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        hosted.stop()


async def test_a_server_that_was_killed_comes_back_with_all_that_it_had_acknowledged(tmp_path: Path) -> None:
    again = asyncio.Event()
    async with kept(tmp_path, lambda words: again.set()) as hosted:
        admin = await connect(hosted.address("admin"), run="demo", role="admin", id="test")
        await admin.apply_topology(LogSettings(), WeightsSettings())
        for number in range(3):
            again.clear()
            await admin.publish(task(run="demo", group=number))
            os.kill(hosted.pid, signal.SIGKILL)
            async with asyncio.timeout(10):
                await again.wait()
        assert (await admin.publish(task(run="demo", group=3))).sequence == 4
        assert (await admin.state(TASKS)).messages == 4
        await admin.close()


async def test_it_comes_back_on_its_own_port_once_that_is_free(tmp_path: Path) -> None:
    hosted, taken = HostedServer(RunFolder(tmp_path / "demo")), asyncio.Event()
    address = hosted.address("admin")
    os.kill(hosted.pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, hosted.pid, os.WEXITED | os.WNOWAIT)
    with socket.create_server(("127.0.0.1", int(address.url.rpartition(":")[2]))):
        keeping = asyncio.create_task(hosted.keep(lambda words: taken.set() if "is taken" in words else None))
        async with asyncio.timeout(30):
            await taken.wait()
    admin = await connect(address, run="demo", role="admin", id="test", timeout_s=30.0)
    await admin.close()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    hosted.stop()


async def test_a_server_that_has_met_a_full_disk_is_started_again_when_there_is_room(small_disk: Path) -> None:
    said: list[str] = []
    async with kept(small_disk, said.append) as hosted:
        first = hosted.pid
        admin = await connect(hosted.address("admin"), run="demo", role="admin", id="test")
        await admin.apply_topology(LogSettings(), WeightsSettings())
        await admin.publish(task(run="demo", group=0))
        ballast = fill(small_disk)
        waiting = [asyncio.create_task(admin.publish(task(run="demo", group=group))) for group in range(1, 200)]

        async def told() -> bool:
            return any("nothing can be stored, publishers wait" in words for words in said)

        await eventually(told)
        stored = (await admin.state(TASKS)).last_sequence
        assert stored < 200
        assert hosted.pid == first

        async def explained() -> bool:
            return "where its disk was full, make room and start it again" in admin.holdup

        await eventually(explained)
        ballast.unlink()
        async with asyncio.timeout(60):
            await asyncio.gather(*waiting)
        assert "it is started again, there is room" in said[-1]
        assert hosted.pid != first
        groups = [logged.event.group async for logged in admin.read(TASKS) if isinstance(logged.event, GroupTask)]
        assert sorted(groups) == list(range(200))
        await admin.close()


async def test_a_server_that_dies_while_the_disk_is_full_is_started_when_there_is_room(small_disk: Path) -> None:
    said: list[str] = []
    async with kept(small_disk, said.append) as hosted:
        first = hosted.pid
        ballast = fill(small_disk)
        os.kill(first, signal.SIGKILL)

        async def told() -> bool:
            return len(said) == 2

        await eventually(told)
        assert said[0] == "nats-server has died and is started again"
        assert "nothing can be stored" in said[1]
        ballast.unlink()

        async def back() -> bool:
            return hosted.pid != first

        await eventually(back)


def test_refusals_are_told_once_and_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "nats.log"
    path.write_text("[ERR] JetStream failed to store a msg: no space left on device\n")
    refusals = Refusals(path)
    assert not refusals.more()
    with path.open("a") as file:
        for words, more in (
            ("[INF] all is well\n[ERR] write: no sp", False),
            ("ace left on device\n", True),
            ("", False),
        ):
            file.write(words)
            file.flush()
            assert refusals.more() is more
