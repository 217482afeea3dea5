"""Reading a stream in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus import Bus, Logged, connect
from bus.settings import LogSettings, WeightsSettings
from schemas import CONTROL, LEDGER, ROLLOUTS, TASKS, BusError, Closed, Control, GroupTask, LogGap, Step, Term, Weights
from tests import examples
from tests.conftest import ConnectAs

from .conftest import Fragile, until


async def publish_tasks(bus: Bus, groups: range) -> None:
    await asyncio.gather(*(bus.publish(examples.task(run=bus.run, group=group)) for group in groups))


async def listed(bus: Bus, *args: Any, **kwargs: Any) -> list[Logged]:
    return [logged async for logged in bus.read(*args, **kwargs)]


async def test_many_batches_are_read_in_order_without_repeats(connect_as: ConnectAs) -> None:
    bus = await connect_as("dispatcher")
    for begin in range(0, 2500, 500):
        await publish_tasks(bus, range(begin, begin + 500))
    assert [logged.sequence for logged in await listed(bus, TASKS)] == list(range(1, 2501))
    assert [logged.sequence for logged in await listed(bus, TASKS, start=1700)] == list(range(1700, 2501))
    assert await listed(bus, TASKS, start=2501) == []


async def test_batch_is_bounded_by_bytes(connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await connect_as("dispatcher")
    await publish_tasks(bus, range(50))
    monkeypatch.setattr("bus.log.BATCH_BYTES", 2000)
    assert [logged.sequence for logged in await listed(bus, TASKS)] == list(range(1, 51))


async def test_empty_stream_has_nothing_to_read(connect_as: ConnectAs) -> None:
    bus = await connect_as("reader")
    assert await listed(bus, TASKS) == []
    assert await listed(bus, LEDGER, kinds=(Step,)) == []
    assert await bus.last(LEDGER, Step) is None
    assert await bus.last(LEDGER) is None


async def test_kinds_select_events_and_keep_their_sequences(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("trainer")
    for event in (
        examples.term(run=run),
        examples.weights(run=run, version=0),
        examples.closed(run=run),
        examples.step(run=run),
        examples.weights(run=run, version=1),
    ):
        await bus.publish(event)
    assert [logged.sequence for logged in await listed(bus, LEDGER, kinds=(Weights,))] == [2, 5]
    assert [logged.sequence for logged in await listed(bus, LEDGER, kinds=(Closed, Term))] == [1, 3]
    assert [logged.sequence for logged in await listed(bus, LEDGER, kinds=(Term,))] == [1]
    newest = await bus.last(LEDGER, Weights)
    assert newest is not None
    assert newest.event == examples.weights(run=run, version=1)
    assert newest == (await listed(bus, LEDGER))[-1]


async def test_message_that_is_no_event_is_read_with_the_reason(connect_as: ConnectAs, run: str) -> None:
    admin = await connect_as("admin")
    await admin.wire.request(f"hr.{run}.task.reverse", b"{nonsense", timeout_s=5)
    (logged,) = await listed(admin, TASKS)
    assert logged.event is None
    assert logged.payload == b"{nonsense"
    assert logged.invalid is not None
    assert "not a known event" in logged.invalid


async def test_purged_messages_are_passed_over(connect_as: ConnectAs) -> None:
    bus, trainer = await connect_as("dispatcher"), await connect_as("trainer")
    await publish_tasks(bus, range(10))
    await trainer.purge(TASKS, before=6)
    state = await bus.state(TASKS)
    assert (state.first_sequence, state.last_sequence, state.messages) == (6, 10, 5)
    assert [logged.sequence for logged in await listed(bus, TASKS, start=2)] == [6, 7, 8, 9, 10]
    await trainer.purge(TASKS, before=11)
    assert await listed(bus, TASKS) == []


@pytest.mark.parametrize(("deleted", "missing"), [((4,), "4 to 4"), ((5, 6), "5 to 6"), ((10,), "10 to 10")])
async def test_gap_that_no_purge_explains_is_reported(
    connect_as: ConnectAs, deleted: tuple[int, ...], missing: str
) -> None:
    bus, admin = await connect_as("dispatcher"), await connect_as("admin")
    await publish_tasks(bus, range(10))
    stream = TASKS.name(bus.run)
    for sequence in deleted:
        await admin.wire.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
    with pytest.raises(LogGap, match=f"{stream} has no messages {missing}, and no purge explains it"):
        await listed(bus, TASKS)
    assert len(await listed(bus, TASKS, kinds=(GroupTask,))) == 10 - len(deleted)


async def test_follower_hears_each_event_and_goes_on_after_a_gap_of_other_kinds(
    connect_as: ConnectAs, run: str
) -> None:
    bus = await connect_as("trainer")
    seen: list[int] = []

    async def follow() -> None:
        async for logged in bus.read(LEDGER, kinds=(Weights,), start=1, follow=True):
            seen.append(logged.sequence)

    following = asyncio.create_task(follow())
    for version in range(3):
        await bus.publish(examples.closed(run=run, group=version))
        await bus.publish(examples.weights(run=run, version=version))
        await until(lambda expected=2 * version + 2: seen[-1:] == [expected])  # type: ignore[misc]
    assert seen == [2, 4, 6]
    following.cancel()


async def test_rollouts_are_heard_although_they_have_no_echo(
    connect_as: ConnectAs, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.log.LOOK_EVERY_S", 3600.0)
    bus, follower = await connect_as("generator"), (await connect_as("reader")).read(ROLLOUTS, follow=True)
    for member in range(3):
        await bus.publish(examples.rollout(run=run, member=member))
        async with asyncio.timeout(30.0):
            assert (await anext(follower)).sequence == member + 1


async def test_follower_survives_a_server_that_is_killed(fragile: Fragile) -> None:
    reader, operator = await fragile.connect("reader"), await fragile.connect("operator")
    seen: list[Logged] = []

    async def follow() -> None:
        async for logged in reader.read(CONTROL, kinds=(Control,), follow=True):
            seen.append(logged)

    following = asyncio.create_task(follow())
    for round_ in range(1, 4):
        await operator.publish(examples.control(run=fragile.run, by=f"{round_}"))
        await until(lambda expected=round_: len(seen) == expected)  # type: ignore[misc]
        fragile.kill()
        await until(lambda: not reader.connected)
        fragile.start()
    assert [logged.sequence for logged in seen] == [1, 2, 3]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_read_that_began_without_a_server_ends_when_it_is_back(fragile: Fragile) -> None:
    bus = await fragile.connect("operator")
    await bus.publish(examples.control(run=fragile.run))
    fragile.kill()
    await until(lambda: not bus.connected)
    reading = asyncio.create_task(listed(bus, CONTROL))
    fragile.start()
    assert len(await reading) == 1


async def test_follower_of_a_stream_that_was_made_anew_is_told(
    connect_as: ConnectAs, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.log.LOOK_EVERY_S", 0.05)
    admin, bus = await connect_as("admin"), await connect_as("dispatcher")
    await publish_tasks(bus, range(3))
    follower = bus.read(TASKS, follow=True)
    for _ in range(3):
        await anext(follower)
    config = (await admin.wire.api(f"STREAM.INFO.{run}_TASKS"))["config"]
    await admin.wire.api(f"STREAM.DELETE.{run}_TASKS")
    await admin.wire.api(f"STREAM.CREATE.{run}_TASKS", config)
    with pytest.raises(LogGap, match=f"{run}_TASKS ends at 0, and 3 was read before"):
        await anext(follower)


async def test_two_runs_do_not_see_each_other(server: Any, connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("generator")
    await bus.publish(examples.rollout(run=run))
    other = await connect(server.address("topology"), run=f"{run}x", role="topology", id="t")
    await other.apply_topology(LogSettings(), WeightsSettings())
    assert await listed(other, ROLLOUTS) == []
    await other.close()


async def test_reader_of_a_stream_that_was_deleted_is_told(connect_as: ConnectAs, run: str) -> None:
    admin, bus = await connect_as("admin"), await connect_as("dispatcher")
    await admin.wire.api(f"STREAM.DELETE.{run}_TASKS")
    with pytest.raises(BusError, match=r"stream not found"):
        await anext(bus.read(TASKS, follow=True))


async def test_message_of_a_wanted_kind_that_cannot_be_read_is_passed_over_and_said(
    connect_as: ConnectAs, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin, bus = await connect_as("admin"), await connect_as("dispatcher")
    await admin.wire.request(f"hr.{run}.task.reverse", b"no task", timeout_s=5.0)
    await publish_tasks(bus, range(1))
    assert [logged.sequence for logged in await listed(bus, TASKS, kinds=(GroupTask,))] == [2]
    assert f"message 1 of {run}_TASKS is passed over: not a known event" in caplog.text
