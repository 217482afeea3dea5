"""What is promised while a signal has stopped the server: it takes connections and bytes, and answers nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bus import BusThread, Telemetry, connect
from bus.settings import LogSettings, WeightsSettings
from schemas import ROLLOUTS, TELEMETRY, Lifecycle, Metric, ServerUnreachable
from tests import examples
from tests.signals import stop
from tests.waiting import eventually

from .conftest import Fragile, until

END_S = 30.0
"""Where nothing else runs it takes 3 s; what waits for the server would wait for ever."""


@pytest.fixture
async def stoppable(fragile: Fragile) -> AsyncIterator[Fragile]:
    yield fragile
    fragile.server.wake()


async def test_what_is_published_meanwhile_is_stored_once_when_it_goes_on(stoppable: Fragile) -> None:
    bus = await stoppable.connect("generator")
    assert await bus.answers(10.0)
    stop(stoppable.server.pid)
    publishing = [
        asyncio.create_task(bus.publish(examples.rollout(run=stoppable.run, member=member))) for member in range(4)
    ]

    async def told() -> bool:
        return bus.holdup.startswith("publishing rollout.v1 to fragile_ROLLOUTS, and 3 more: still trying after")

    await eventually(told)
    assert not await bus.answers(0.1)
    stoppable.server.wake()
    assert sorted([published.sequence for published in await asyncio.gather(*publishing)]) == [1, 2, 3, 4]
    assert (await bus.state(ROLLOUTS)).messages == 4
    assert bus.holdup == ""


async def test_connection_is_closed_in_time_whatever_waits_to_be_sent(stoppable: Fragile) -> None:
    bus = await stoppable.connect("generator")
    stop(stoppable.server.pid)
    event = examples.dead(run=stoppable.run, payload=bytes(5_000_000))
    publishing = [asyncio.create_task(bus.publish(event)) for _ in range(4)]
    await asyncio.sleep(0)
    async with asyncio.timeout(END_S):
        await bus.close()
    ends = await asyncio.gather(*publishing, return_exceptions=True)
    assert [type(end) for end in ends] == [ServerUnreachable] * 4


async def test_a_wait_behind_what_cannot_be_sent_has_its_bound_and_takes_a_cancellation(stoppable: Fragile) -> None:
    bus = await stoppable.connect("generator")
    stop(stoppable.server.pid)
    event = examples.dead(run=stoppable.run, payload=bytes(5_000_000))
    publishing = [asyncio.create_task(bus.publish(event)) for _ in range(4)]
    await until(lambda: bus.wire._client.congested)
    async with asyncio.timeout(END_S):
        collected = await bus.wire.collect("anything", {}, most=1, quiet_s=0.1)
        assert collected.lost == "nothing could be sent within 0.1 s"
        waiting = asyncio.create_task(bus.wire.collect("anything", {}, most=1, quiet_s=600))
        subscribing = asyncio.create_task(bus.wire.subscribe("anything", print))
        await asyncio.sleep(0)
        for task in (waiting, subscribing):
            task.cancel()
        ends = await asyncio.gather(waiting, subscribing, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
    for task in publishing:
        task.cancel()


async def test_what_was_not_sent_when_the_connection_was_lost_is_not_sent_over_the_next(stoppable: Fragile) -> None:
    """Who asked has been told that it was lost: an answer would come to nobody, and a task be leased to nobody."""
    bus = await stoppable.connect("generator")
    stop(stoppable.server.pid)
    publishing = asyncio.create_task(bus.publish(examples.dead(run=stoppable.run, payload=bytes(5_000_000))))
    await until(lambda: bus.wire._client.congested)
    stoppable.kill()
    await until(lambda: not bus.wire._client.congested)
    assert bus.wire._client._pending == []
    publishing.cancel()


async def test_connecting_ends_with_its_time(stoppable: Fragile) -> None:
    stop(stoppable.server.pid)
    with pytest.raises(ServerUnreachable, match=r"no NATS server answers at .* within 0\.5 s"):
        await connect(stoppable.server.address("reader"), run="r", role="reader", id="r", timeout_s=0.5)


async def test_telemetry_ends_in_time_and_says_later_what_it_could_not_say_then(stoppable: Fragile) -> None:
    bus = await stoppable.connect("generator")
    async with asyncio.timeout(END_S):
        async with Telemetry(bus, dict, interval_s=600) as telemetry:
            stop(stoppable.server.pid)
            telemetry.ready()
    stoppable.server.wake()
    async with Telemetry(bus, dict, interval_s=600) as telemetry:
        telemetry.ready()
    reader = await stoppable.connect("reader")
    states = [logged.event.state async for logged in reader.read(TELEMETRY, kinds=(Lifecycle,)) if logged.event]
    assert states[-3:] == ["started", "ready", "stopped"]


async def test_heartbeat_says_what_holds_the_role_up(stoppable: Fragile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.connection.HOLDUP_S", 0.0)
    topology, bus = await stoppable.connect("topology"), await stoppable.connect("generator")
    await topology.apply_topology(LogSettings(max_gib=2e-7), WeightsSettings())
    publishing = asyncio.create_task(bus.publish(examples.rollout(run=stoppable.run)))
    async with Telemetry(bus, dict, interval_s=0.01):
        async for logged in bus.read(TELEMETRY, kinds=(Metric,), follow=True):
            assert isinstance(logged.event, Metric)
            if logged.event.note:
                break
    assert "publishing rollout.v1 to fragile_ROLLOUTS: still trying after" in logged.event.note
    assert "raise log.max_gib" in logged.event.note
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)


def test_server_that_is_stopped_is_ended_in_order(stoppable: Fragile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.server.STOP_S", END_S)
    stop(stoppable.server.pid)
    stoppable.server.stop()
    assert "Initiating Shutdown" in (stoppable.folder / "logs" / "nats.log").read_text()


def test_thread_ends_in_time(stoppable: Fragile) -> None:
    thread = BusThread(stoppable.server.address("trainer"), run=stoppable.run, role="trainer", id="t")
    thread.start()
    generator = BusThread(stoppable.server.address("generator"), run=stoppable.run, role="generator", id="g")
    generator.start()
    generator.call(lambda bus: bus.publish(examples.rollout(run=stoppable.run)), 10)
    generator.stop()
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=1)
    assert box.get(10) is not None
    stop(stoppable.server.pid)
    box.ack_through(1)
    thread.stop()
    thread._thread.join(END_S)
    assert not thread._thread.is_alive()
