"""How a role's process ends, seen by whoever has started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bus import Address, connect
from headrace.folder import RunFolder
from headrace.roles import FAILED, FINAL, UNREACHABLE, _run, next_request, run_role, stop_on_request
from headrace.server import environment_for
from schemas import (
    ConfigError,
    EnvironmentFault,
    Fenced,
    HeadraceError,
    LogGap,
    RunError,
    ServerUnreachable,
)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_role_is_interrupted_while_it_waits_for_a_server(
    ended: RunFolder, tmp_path: Path, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address(f"nats://127.0.0.1:{mute.getsockname()[1]}")
        command = [sys.executable, "-m", "headrace", "dispatch", str(ended.path / "config.json")]
        process = subprocess.Popen(command, env=os.environ | environment_for(address))
        connection, _ = mute.accept()
        with connection:
            process.send_signal(number)
            assert process.wait() == 128 + number


async def test_a_stop_that_came_since_the_role_connected_is_heard(going_on: GoingOn) -> None:
    asked = asyncio.Event()
    bus = await connect(going_on.server.address("dispatcher"), run="demo", role="dispatcher", id="test")
    first = await next_request(bus)
    await asyncio.to_thread(ask_to_stop, going_on)
    listening = asyncio.create_task(stop_on_request(bus, asked.set, start=first))
    async with asyncio.timeout(30):
        await asked.wait()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await bus.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Fenced("another trainer"), FINAL),
        (RunError("finished"), FINAL),
        (LogGap("messages are missing"), FINAL),
        (ServerUnreachable("no answer"), UNREACHABLE),
        (ConfigError("wrong"), FAILED),
    ],
)
def test_exit_code_tells_whether_starting_it_again_would_help(error: HeadraceError, code: int) -> None:
    def body() -> None:
        raise error

    def among_others() -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [error])])

    assert run_role(body) == run_role(among_others) == code


def test_sys_exit_in_a_task_of_an_environment_s_own_is_no_orderly_end() -> None:
    async def role() -> None:
        async def quit() -> None:
            sys.exit(0)

        helper = asyncio.create_task(quit())
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        helper.exception()

    with pytest.raises(EnvironmentFault, match=r"a task that an environment had started called sys.exit\(0\)"):
        _run(role())


STUBBORN = """
import asyncio, threading
from headrace.roles import _run

async def stay():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("cancelled", flush=True)

async def role():
    asyncio.create_task(stay())
    hanging = asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await asyncio.sleep(0)
    return 15

try:
    _run(role())
except SystemExit as error:
    print(error.code, flush=True)
import os
os._exit(0)
"""


def test_a_role_ends_although_an_environment_keeps_a_task_and_a_thread() -> None:
    """``asyncio.run`` would wait for both for ever."""
    done = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["cancelled", "143"]


def ask_to_stop(run: GoingOn) -> None:
    command = [sys.executable, "-m", "headrace", "stop", "demo", "--dir", str(run.folder.path.parent)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def test_role_that_a_person_stopped_is_done(going_on: GoingOn, tmp_path: Path) -> None:
    process = dispatcher(going_on, tmp_path / "log")
    await until_it_listens(tmp_path / "log")
    while process.poll() is None:  # It begins to listen for it at about the time of that line.
        ask_to_stop(going_on)
    assert process.wait() == 0
