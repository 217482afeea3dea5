"""Holes in a stream: what was deleted one by one is a fault, what a purge took is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import Bus
from bus.gaps import in_ranges
from schemas import LEDGER, ROLLOUTS, TASKS, BusError, Closed, LogGap, Step, StreamSpec
from tests import examples
from tests.conftest import ConnectAs


async def delete(admin: Bus, spec: StreamSpec, *sequences: int) -> None:
    """As ``nats stream rmm`` does; without overwriting the bytes."""
    for sequence in sequences:
        await admin.wire.api(f"STREAM.MSG.DELETE.{spec.name(admin.run)}", {"seq": sequence, "no_erase": True})


async def publish_tasks(bus: Bus, count: int) -> None:
    for group in range(count):
        await bus.publish(examples.task(run=bus.run, group=group))


async def test_holes_in_the_middle_are_named(connect_as: ConnectAs, run: str) -> None:
    admin, bus = await connect_as("admin"), await connect_as("dispatcher")
    await publish_tasks(bus, 9)
    await bus.require_whole(TASKS)
    await delete(admin, TASKS, 3, 5, 6, 7)
    with pytest.raises(LogGap, match=f"{run}_TASKS has no messages 3, 5 to 7, and no purge explains it: restore"):
        await bus.require_whole(TASKS)
    with pytest.raises(LogGap, match="has no messages 6 to 7,"):
        await bus.require_whole(TASKS, start=6)


async def test_holes_below_what_is_needed_are_reported(
    connect_as: ConnectAs, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin, bus = await connect_as("admin"), await connect_as("dispatcher")
    await publish_tasks(bus, 9)
    await delete(admin, TASKS, 3)
    await bus.require_whole(TASKS, start=4)
    assert f"{run}_TASKS has no messages 3, and no purge explains it: what goes on needs those from 4 on" in caplog.text


async def test_what_a_purge_took_is_no_hole(connect_as: ConnectAs, caplog: pytest.LogCaptureFixture) -> None:
    trainer, bus = await connect_as("trainer"), await connect_as("dispatcher")
    await publish_tasks(bus, 9)
    await trainer.purge(TASKS, before=5)
    await bus.require_whole(TASKS)
    assert not caplog.records


async def test_reading_several_kinds_finds_a_hole_too(connect_as: ConnectAs, run: str) -> None:
    """As the dispatcher reads the ledger."""
    admin = await connect_as("admin")
    for group in range(5):
        await admin.publish(examples.closed(run=run, group=group))
    await delete(admin, LEDGER, 2)
    with pytest.raises(LogGap, match=f"{run}_LEDGER has no messages 2 to 2"):
        assert [logged async for logged in admin.read(LEDGER, kinds=(Closed, Step))]


async def test_an_inbox_that_meets_a_hole_says_so(connect_as: ConnectAs, server: object, run: str) -> None:
    from bus import BusThread, EmbeddedServer

    assert isinstance(server, EmbeddedServer)
    admin, generator = await connect_as("admin"), await connect_as("generator")
    for member in range(4):
        await generator.publish(examples.rollout(run=run, member=member))
    await delete(admin, ROLLOUTS, 3)
    thread = BusThread(server.address("trainer"), run=run, role="trainer", id="t")
    thread.start()
    try:
        inbox = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=60.0, start=1)
        assert [getattr(inbox.get(10.0), "sequence", None) for _ in range(2)] == [1, 2]
        with pytest.raises(BusError, match="has no messages 3 to 3, and no purge explains it") as fault:
            inbox.get(10.0)
        assert isinstance(fault.value, LogGap)
    finally:
        thread.stop()


@given(st.sets(st.integers(1, 30), min_size=1))
def test_ranges_name_each_sequence_once(sequences: set[int]) -> None:
    named: list[int] = []
    words, _, more = in_ranges(sorted(sequences)).partition(" and ")
    for part in words.split(", "):
        first, _, last = part.partition(" to ")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(sequences)[: len(named)]
    assert more or len(named) == len(sequences)
