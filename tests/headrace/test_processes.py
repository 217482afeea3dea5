from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.processes import children, condition
from tests.waiting import eventually


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


async def test_condition_follows_the_process(child: subprocess.Popen[bytes]) -> None:
    async def is_now(expected: str) -> None:
        async def holds() -> bool:
            return condition(child.pid) == expected

        await eventually(holds)

    await is_now("runs")
    child.send_signal(signal.SIGSTOP)
    await is_now("stopped")
    child.send_signal(signal.SIGCONT)
    await is_now("runs")
    child.kill()
    await is_now("gone")  # also before its parent has taken note
    child.wait()
    await is_now("gone")


def test_children_are_those_of_the_process(child: subprocess.Popen[bytes]) -> None:
    assert child.pid in children(os.getpid())
    assert children(child.pid) == []
