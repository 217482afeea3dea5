from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from bus import connect
from bus.settings import LogSettings
from headrace.folder import RunFolder
from headrace.hosted_server import HostedServer
from schemas import TASKS
from tests.examples import task


async def test_a_server_that_was_killed_comes_back_with_all_that_it_had_acknowledged(tmp_path: Path) -> None:
    hosted = HostedServer(RunFolder(tmp_path / "demo"))
    again = asyncio.Event()
    keeping = asyncio.create_task(hosted.keep(again.set))
    try:
        admin = await connect(hosted.address("admin"), run="demo", role="admin", id="test")
        await admin.apply_topology(LogSettings())
        for number in range(3):
            again.clear()
            await admin.publish(task(run="demo", group=number))
            os.kill(hosted.pid, signal.SIGKILL)
            await asyncio.wait_for(again.wait(), 10)
        assert (await admin.publish(task(run="demo", group=3))).sequence == 4
        assert (await admin.state(TASKS)).messages == 4
        await admin.close()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        hosted.stop()
