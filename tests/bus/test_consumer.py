"""Pulling: leases, cursors, and what a pull leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from bus import ApiError, Bus, Consumer, Delivery
from bus.answers import Fault
from schemas import ROLLOUTS, TASKS, BusError, StreamMismatch
from schemas import Task as EnvironmentTask
from tests import examples
from tests.conftest import ConnectAs

from .conftest import Fragile, Relay, until


async def publish_tasks(connect_as: ConnectAs, groups: Iterable[int]) -> Bus:
    bus = await connect_as("dispatcher")
    for group in groups:
        await bus.publish(examples.task(run=bus.run, group=group))
    return bus


async def leases(bus: Bus, *, ack_wait_s: float = 30.0) -> Consumer:
    return await bus.consumer(TASKS, "generators", ack="explicit", ack_wait_s=ack_wait_s)


def sequences(deliveries: list[Delivery]) -> list[int]:
    return [delivery.sequence for delivery in deliveries]


async def test_fetch_takes_what_is_there_and_no_more_than_asked(connect_as: ConnectAs) -> None:
    await publish_tasks(connect_as, range(5))
    consumer = await leases(await connect_as("generator"))
    first = await consumer.fetch(3, 10)
    assert sequences(first) == [1, 2, 3]
    assert first[0].event == examples.task(run=first[0].headers["hr-run"], group=0)
    assert first[0].delivered == 1
    assert sequences(await consumer.fetch(100, 10)) == [4, 5]
    assert await consumer.fetch(100, 0.01) == []


async def test_waiting_fetch_returns_with_the_first_to_come(connect_as: ConnectAs) -> None:
    dispatcher = await publish_tasks(connect_as, [])
    consumer = await leases(await connect_as("generator"))
    fetching = asyncio.create_task(consumer.fetch(100, 60))
    await dispatcher.publish(examples.task(run=dispatcher.run, group=0))
    assert sequences(await fetching) == [1]


async def test_two_generators_share_one_consumer_and_no_task(connect_as: ConnectAs) -> None:
    await publish_tasks(connect_as, range(6))
    one, other = await leases(await connect_as("generator")), await leases(await connect_as("generator"))
    taken = sequences(await one.fetch(3, 10)) + sequences(await other.fetch(3, 10))
    assert sorted(taken) == [1, 2, 3, 4, 5, 6]


async def test_lease_that_ends_is_delivered_again_and_a_renewed_one_is_not(connect_as: ConnectAs) -> None:
    await publish_tasks(connect_as, range(2))
    consumer = await leases(await connect_as("generator"), ack_wait_s=6.0)
    kept, lost = await consumer.fetch(2, 10)
    again: list[Delivery] = []
    while not again:
        await kept.in_progress()
        again = await consumer.fetch(2, 0.1)
    assert [(delivery.sequence, delivery.delivered) for delivery in again] == [(lost.sequence, 2)]


async def test_acknowledged_task_is_settled_when_ack_returns(connect_as: ConnectAs) -> None:
    await publish_tasks(connect_as, range(2))
    consumer = await leases(await connect_as("generator"))
    first, second = await consumer.fetch(2, 10)
    await second.ack()
    state = await consumer.info()
    assert (state.delivered, state.ack_floor, state.pending, state.ack_pending) == (2, 0, 0, 1)
    await first.ack()
    assert (await consumer.info()).ack_floor == 2


async def test_task_given_back_is_delivered_again_at_once(connect_as: ConnectAs) -> None:
    await publish_tasks(connect_as, range(1))
    consumer = await leases(await connect_as("generator"), ack_wait_s=600)
    (delivery,) = await consumer.fetch(1, 10)
    await delivery.nak()
    (again,) = await consumer.fetch(1, 10)
    assert again.delivered == 2
    await again.nak(delay_s=3600)
    assert await consumer.fetch(1, 0.05) == []


async def test_ack_all_settles_everything_before(connect_as: ConnectAs, run: str) -> None:
    generator, trainer = await connect_as("generator"), await connect_as("trainer")
    for member in range(5):
        await generator.publish(examples.rollout(run=run, member=member))
    consumer = await trainer.consumer(ROLLOUTS, "trainer", ack="all", ack_wait_s=600)
    deliveries = await consumer.fetch(5, 10)
    await deliveries[3].ack()
    state = await consumer.info()
    assert (state.ack_floor, state.ack_pending) == (4, 1)


async def test_reset_goes_backwards_and_forwards(connect_as: ConnectAs) -> None:
    await publish_tasks(connect_as, range(6))
    consumer = await leases(await connect_as("admin"))
    for delivery in await consumer.fetch(6, 10):
        await delivery.ack()
    await consumer.reset(3)
    assert sequences(await consumer.fetch(2, 10)) == [3, 4]
    await consumer.reset(6)
    assert sequences(await consumer.fetch(10, 10)) == [6]
    await consumer.reset(0)
    assert sequences(await consumer.fetch(10, 10)) == [1, 2, 3, 4, 5, 6]
    await consumer.reset(7)
    assert await consumer.fetch(10, 0.01) == []


async def test_consumer_holds_more_than_a_thousand_unsettled(connect_as: ConnectAs) -> None:
    dispatcher = await connect_as("dispatcher")
    for begin in (0, 600):
        await asyncio.gather(
            *(dispatcher.publish(examples.task(run=dispatcher.run, group=begin + i)) for i in range(600))
        )
    consumer = await leases(await connect_as("generator"))
    assert len(await consumer.fetch(1200, 10)) == 1200


async def test_fetch_is_bounded_by_bytes(connect_as: ConnectAs) -> None:
    dispatcher = await connect_as("dispatcher")
    for group in range(4):
        task = EnvironmentTask(prompt="x" * 1_000_000)
        await dispatcher.publish(examples.task(run=dispatcher.run, group=group, task=task))
    consumer = await leases(await connect_as("generator"))
    assert sequences(await consumer.fetch(4, 10, max_bytes=2_500_000)) == [1, 2]
    with pytest.raises(BusError, match="the next message is larger than what may be fetched"):
        await consumer.fetch(4, 10, max_bytes=1000)
    assert sequences(await consumer.fetch(4, 10)) == [3, 4]


async def test_fetch_that_was_cancelled_takes_nothing_later(connect_as: ConnectAs) -> None:
    dispatcher = await connect_as("dispatcher")
    consumer = await leases(await connect_as("generator"), ack_wait_s=600)
    fetching = asyncio.create_task(consumer.fetch(10, 60))
    while (await consumer._wire.api(f"CONSUMER.INFO.{dispatcher.run}_TASKS.generators"))["num_waiting"] == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    await consumer.info()  # The server has taken note of the end of the pull before it answers this.
    await dispatcher.publish(examples.task(run=dispatcher.run, group=0))
    (delivery,) = await consumer.fetch(10, 60)
    assert delivery.delivered == 1


async def test_other_kind_of_consumer_under_the_name_is_refused_with_its_remedy(
    connect_as: ConnectAs, run: str
) -> None:
    generator = await connect_as("generator")
    await leases(generator)
    with pytest.raises(StreamMismatch, match=f"exists with other settings .* nats consumer rm {run}_TASKS generators"):
        await generator.consumer(TASKS, "generators", ack="all", ack_wait_s=30)


async def test_other_settings_are_named_one_by_one(connect_as: ConnectAs) -> None:
    generator = await connect_as("generator")
    await leases(generator, ack_wait_s=30)
    with pytest.raises(StreamMismatch, match=r"\(ack_policy: the server has 'explicit', this run wants 'all'\)"):
        await generator.consumer(TASKS, "generators", ack="all", ack_wait_s=30)


async def test_consumer_that_the_server_refuses_for_a_reason_of_its_own_is_no_mismatch(
    connect_as: ConnectAs, run: str
) -> None:
    admin = await connect_as("admin")
    stream = (await admin.wire.api(f"STREAM.INFO.{run}_TASKS"))["config"]
    await admin.wire.api(f"STREAM.UPDATE.{run}_TASKS", {**stream, "max_consumers": 1})
    await admin.consumer(TASKS, "first", ack="explicit", ack_wait_s=30)
    with pytest.raises(
        BusError, match=rf"refuses to make consumer generators of {run}_TASKS: maximum consumers"
    ) as caught:
        await leases(await connect_as("generator"))
    assert not isinstance(caught.value, StreamMismatch)


async def test_consumer_is_made_as_soon_as_the_server_is_ready_to(
    connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, faults = await connect_as("generator"), [Fault(503, 10008, "JetStream system temporarily unavailable")]
    ask = generator.wire.api

    async def busy_at_first(path: str, body: dict[str, object] | None = None) -> object:
        if faults:
            raise ApiError(path, faults.pop())
        return await ask(path, body)

    monkeypatch.setattr(generator.wire, "api", busy_at_first)
    assert (await (await leases(generator)).info()).delivered == 0


async def test_consumer_of_a_missing_stream_names_the_remedy(connect_as: ConnectAs) -> None:
    bus = await connect_as("admin")
    bus.run = "nowhere"
    with pytest.raises(StreamMismatch, match="stream nowhere_TASKS does not exist: run headrace topology apply"):
        await leases(bus)


async def test_deleted_consumer_is_reported(connect_as: ConnectAs, run: str) -> None:
    admin = await connect_as("admin")
    consumer = await leases(await connect_as("generator"))
    await admin.wire.api(f"CONSUMER.DELETE.{run}_TASKS.generators")
    with pytest.raises(BusError, match=f"consumer generators of {run}_TASKS was deleted"):
        await consumer.fetch(1, 1)


async def test_fetch_goes_on_after_a_server_that_is_killed(fragile: Fragile) -> None:
    dispatcher, generator = await fragile.connect("dispatcher"), await fragile.connect("generator")
    consumer = await leases(generator)
    fetching = asyncio.create_task(consumer.fetch(1, 60))
    fragile.kill()
    await until(lambda: not generator.connected)
    fragile.start()
    await dispatcher.publish(examples.task(run=fragile.run, group=0))
    assert sequences(await fetching or await consumer.fetch(1, 60)) == [1]


async def test_lease_that_a_killed_server_forgot_is_handed_out_again(
    fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher, generator = await fragile.connect("dispatcher"), await fragile.connect("generator")
    await dispatcher.publish(examples.task(run=fragile.run, group=0))
    consumer = await leases(generator, ack_wait_s=600)
    (held,) = await consumer.fetch(1, 10)
    fragile.kill()
    await until(lambda: not generator.connected)
    fragile.start()
    await until(lambda: generator.connected)
    # The server writes down what it handed out a moment later; killed before, it ignores the acknowledgement.
    if (await consumer.info()).ack_pending:
        await held.ack()
    else:
        monkeypatch.setattr("bus.consumer.ACK_DEADLINE_S", 1.0)
        with pytest.raises(BusError):
            await held.ack()
        (again,) = await consumer.fetch(1, 60)
        assert again.sequence == held.sequence
        await again.ack()
    assert (await consumer.info()).ack_floor == 1


async def test_ack_whose_confirmation_is_lost_is_said_again(connect_as: ConnectAs, run: str, relay: Relay) -> None:
    await publish_tasks(connect_as, range(1))
    watcher = await leases(await connect_as("generator"))
    bus = await relay.connect("generator", run)
    (delivery,) = await (await leases(bus)).fetch(1, 10)
    relay.deaf = True
    settling = asyncio.create_task(delivery.ack())
    while (await watcher.info()).ack_floor == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not settling.done()
    relay.deaf = False
    relay.cut()
    await settling


async def test_consumer_that_is_made_without_a_server_is_there_when_it_is_back(
    fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.wire.API_DEADLINE_S", 0.05)
    monkeypatch.setattr("bus.wire.API_TIMEOUT_S", 0.05)
    bus = await fragile.connect("generator")
    attempts: list[str] = []
    ask = bus.wire.api

    async def noted(path: str, body: dict[str, object] | None = None) -> object:
        attempts.append(path)
        return await ask(path, body)

    monkeypatch.setattr(bus.wire, "api", noted)
    fragile.kill()
    await until(lambda: not bus.connected)
    making = asyncio.create_task(leases(bus))
    await until(lambda: len(attempts) > 1)
    fragile.start()
    assert await (await making).fetch(1, 0.05) == []
