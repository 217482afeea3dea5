"""Connecting and publishing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from pathlib import Path

import pytest

from bus import Address, EmbeddedServer, Published, StreamFull, WrongSequence, connect
from bus.publication import Publication
from bus.server import find_binary
from bus.settings import LogSettings, WeightsSettings
from schemas import (
    CONTROL,
    ROLLOUTS,
    TASKS,
    TELEMETRY,
    ConfigError,
    GroupTask,
    PublishFailed,
    ServerUnfit,
    ServerUnreachable,
    Turn,
)
from schemas import Task as EnvironmentTask
from tests import examples
from tests.conftest import ConnectAs
from tests.stand_in.open_server import open_server

from .conftest import Fragile, Relay, until


async def test_published_event_is_in_its_stream_with_headers_of_the_publisher(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("dispatcher", id="d0")
    event = examples.task(run=run, group=0)
    assert await bus.publish(event) == Published(sequence=1, duplicate=False)
    (logged,) = [logged async for logged in bus.read(TASKS)]
    assert logged.event == event
    assert logged.invalid is None
    assert logged.sequence == 1
    assert logged.subject == f"hr.{run}.task.{event.env}"
    assert logged.headers["ce-source"] == f"/{run}/dispatcher/d0"
    assert abs(logged.time - time.time()) < 60


async def test_same_event_again_is_a_duplicate_and_stored_once(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("generator")
    event = examples.rollout(run=run)
    first = await bus.publish(event)
    again = await bus.publish(event)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.sequence == again.sequence
    assert (await bus.state(ROLLOUTS)).messages == 1


async def test_wrong_expected_sequence_is_refused_with_the_actual_one(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("dispatcher")
    await bus.publish(examples.task(run=run, group=0), expected_last_sequence=0)
    with pytest.raises(WrongSequence) as caught:
        await bus.publish(examples.task(run=run, group=1), expected_last_sequence=0)
    assert caught.value.last == 1
    assert (await bus.publish(examples.task(run=run, group=1), expected_last_sequence=1)).sequence == 2


async def test_event_too_large_for_its_stream_fails_before_it_is_sent(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("dispatcher")
    with pytest.raises(PublishFailed, match=r"8\d+ bytes are more than a message's 8388608"):
        await bus.publish(_task_of(run, 8 * 1024 * 1024))
    assert bus.connected


async def test_largest_event_goes_through_and_its_dead_letter_too(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("dispatcher")
    await bus.publish(_task_of(run, 8 * 1024 * 1024 - 1024))
    (logged,) = [logged async for logged in bus.read(TASKS)]
    dead = examples.dead(
        run=run,
        stream=f"{run}_TASKS",
        sequence=1,
        subject=logged.subject,
        headers=logged.headers,
        payload=logged.payload,
    )
    assert (await bus.publish(dead)).sequence == 1


def _task_of(run: str, size: int) -> GroupTask:
    return examples.task(run=run, task=EnvironmentTask(prompt="x" * size))


async def test_event_too_large_for_the_server_names_the_remedy(tmp_path: Path) -> None:
    """A server of somebody's own takes 1 MB in one message, unless it is told otherwise."""
    with open_server(tmp_path / "own") as url:
        bus = await connect(Address(url), run="own", role="admin", id="a")
        await bus.apply_topology(LogSettings(), WeightsSettings())
        with pytest.raises(PublishFailed, match="the server takes 1048576 in one message: raise max_payload"):
            await bus.publish(examples.dead(run="own", payload=bytes(1_048_500)))
        await bus.close()


async def test_a_large_event_has_the_time_that_a_slow_line_takes(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("generator")
    small, large = examples.dead(run=run), examples.dead(run=run, payload=bytes(4 * 1024 * 1024))
    assert Publication(bus.wire, small, source="s").timeout_s < 6
    assert Publication(bus.wire, large, source="s").timeout_s > 20


async def test_missing_stream_is_named_with_its_remedy(server: EmbeddedServer) -> None:
    bus = await connect(server.address("dispatcher"), run="nowhere", role="dispatcher", id="d")
    with pytest.raises(PublishFailed, match="stream nowhere_TASKS does not exist: run headrace topology apply"):
        await bus.publish(examples.task(run="nowhere"))
    await bus.close()


async def test_full_stream_makes_the_publisher_wait_and_say_so_until_there_is_room(
    connect_as: ConnectAs, run: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.patience.LINE_EVERY_S", 0.0)
    topology, bus = await connect_as("topology"), await connect_as("generator")
    await topology.apply_topology(LogSettings(max_gib=0.0001), WeightsSettings())
    big = {"run": run, "tokens": bytes(80_000), "turns": [Turn(20_000, 0, 0, "stop")]}
    await bus.publish(examples.failed_rollout(member=0, **big))
    with pytest.raises(StreamFull, match="the stream is full"):
        await bus.publish(examples.failed_rollout(member=1, **big), wait_for_room=False)
    waiting = asyncio.create_task(bus.publish(examples.failed_rollout(member=1, **big)))
    await until(lambda: "the stream is full (maximum bytes exceeded (10077)): raise log.max_gib" in caplog.text)
    assert not waiting.done()
    await topology.apply_topology(LogSettings(max_gib=1), WeightsSettings())
    assert (await waiting).sequence == 2


async def test_publisher_waits_out_a_lost_acknowledgement_and_stores_once(
    connect_as: ConnectAs, run: str, relay: Relay
) -> None:
    bus = await relay.connect("generator", run)
    watcher = await connect_as("reader")
    relay.deaf = True
    publishing = asyncio.create_task(bus.publish(examples.rollout(run=run)))
    async for _ in watcher.read(ROLLOUTS, follow=True):
        break
    assert not publishing.done()
    relay.deaf = False
    relay.cut()
    assert await publishing == Published(sequence=1, duplicate=True)


async def test_deadline_ends_a_publish_without_a_server(fragile: Fragile) -> None:
    bus = await fragile.connect("operator")
    fragile.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(PublishFailed, match=r"gave up after 0.3 s: no connection to nats://"):
        await bus.publish(examples.control(run=fragile.run), deadline_s=0.3)


async def test_announcement_is_stored(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("sink")
    event = examples.metric(run=run, role="sink")
    await bus.announce(event)
    async for logged in bus.read(TELEMETRY, follow=True):
        assert logged.event == event
        break


async def test_announcement_without_a_server_is_dropped_at_once(fragile: Fragile) -> None:
    bus = await fragile.connect("sink")
    fragile.kill()
    await until(lambda: not bus.connected)
    for _ in range(1000):
        await bus.announce(examples.metric(run=fragile.run, role="sink"))
    fragile.start()
    await until(lambda: bus.connected)
    assert (await bus.state(TELEMETRY)).messages == 0


async def test_denied_announcement_is_logged_once(
    connect_as: ConnectAs, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = await connect_as("reader")
    for _ in range(3):
        await bus.announce(examples.metric(run=run, role="sink"))
    await bus.state(TELEMETRY)
    (told,) = [record.message for record in caplog.records if "may not publish" in record.message]
    assert told.startswith(f"role reader may not publish to 'hr.{run}.metric.sink.{examples.metric().id}'")


async def test_no_server_is_named_with_address_and_time() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServerUnreachable, match=rf"no NATS server answers at {url} as nobody within 0.3 s"):
            await connect(Address(url), run="r", role="reader", id="r", timeout_s=0.3)


async def test_wrong_password_is_refused_before_the_time_is_over(server: EmbeddedServer) -> None:
    with pytest.raises(ServerUnreachable, match=r"refuses us: .*Authorization Violation.*: check user and password"):
        await connect(Address(server.url, "trainer", "wrong"), run="r", role="trainer", id="t", timeout_s=60)


async def test_server_without_jetstream_is_unfit() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    output = subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(
        find_binary(), "-a", "127.0.0.1", "-p", str(port), stdout=output, stderr=output
    )
    try:
        with pytest.raises(ServerUnfit, match="runs without JetStream for nobody"):
            await connect(Address(f"nats://127.0.0.1:{port}"), run="r", role="reader", id="r")
    finally:
        server.terminate()
        await server.wait()


async def test_old_server_is_unfit(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.fitness.OLDEST_SERVER", (3, 0))
    with pytest.raises(ServerUnfit, match=r"has version 2\.\d+\.\d+: Headrace needs 3\.0 or newer"):
        await connect(server.address("reader"), run="r", role="reader", id="r")


async def test_name_that_no_subject_can_carry_is_refused(server: EmbeddedServer) -> None:
    with pytest.raises(ConfigError, match=r"run\.name 'a\.b'"):
        await connect(server.address("reader"), run="a.b", role="reader", id="r")


async def test_password_is_not_in_the_address_as_shown(server: EmbeddedServer) -> None:
    address = server.address("trainer")
    assert address.password
    assert address.password not in repr(address)


async def test_control_keeps_the_newest_when_it_is_full(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("operator")
    for by in range(4):
        await bus.publish(examples.control(run=run, by=f"{by}" * 400_000))
    assert [logged.sequence async for logged in bus.read(CONTROL)] == [3, 4]
