"""The fence."""

from __future__ import annotations

import asyncio

import pytest

from bus import Bus, Ledger
from schemas import LEDGER, BusError, Fenced, PublishFailed
from tests import examples
from tests.conftest import ConnectAs

from .conftest import Fragile, Relay, until


async def opened(bus: Bus, writer: str) -> Ledger:
    ledger = Ledger(bus, writer)
    await ledger.open()
    return ledger


async def kinds(bus: Bus) -> list[str]:
    return [type(logged.event).__name__ async for logged in bus.read(LEDGER)]


async def test_appends_follow_each_other_signed_and_without_a_message_id(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("trainer")
    ledger = await opened(bus, "writer-1")
    assert ledger.last_sequence == 0
    assert await ledger.append(examples.term(run=run)) == 1
    assert await ledger.append(examples.step(run=run)) == 2
    assert ledger.last_sequence == 2
    async for logged in bus.read(LEDGER):
        assert logged.headers["hr-writer"] == "writer-1"
        assert len(logged.headers["hr-digest"]) == 64
        assert "Nats-Msg-Id" not in logged.headers


async def test_second_trainer_is_fenced_by_name(connect_as: ConnectAs, run: str) -> None:
    first, second = await connect_as("trainer", id="old"), await connect_as("trainer", id="new")
    old, new = await opened(first, "writer-old"), await opened(second, "writer-new")
    await old.append(examples.term(run=run))
    with pytest.raises(Fenced, match=rf"message 1 is of /{run}/trainer/old \(writer writer-old\)"):
        await new.append(examples.term(run=run))
    await old.append(examples.step(run=run))
    assert await kinds(first) == ["Term", "Step"]


async def test_takeover_fences_the_one_before_at_its_next_append(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("trainer")
    old = await opened(bus, "old")
    await old.append(examples.term(run=run))
    new = await opened(bus, "new")
    await new.append(examples.term(run=run))
    with pytest.raises(Fenced):
        await old.append(examples.step(run=run))
    with pytest.raises(BusError, match="the ledger is not open"):
        await old.append(examples.step(run=run))


async def test_own_append_whose_acknowledgement_is_lost_is_found_committed(
    connect_as: ConnectAs, run: str, relay: Relay
) -> None:
    watcher, bus = await connect_as("reader"), await relay.connect("trainer", run)
    ledger = await opened(bus, "w")
    relay.deaf = True
    appending = asyncio.create_task(ledger.append(examples.term(run=run)))
    async for _ in watcher.read(LEDGER, follow=True):
        break
    assert not appending.done()
    relay.deaf = False
    relay.cut()
    assert await appending == 1
    assert await ledger.append(examples.step(run=run)) == 2
    assert await kinds(watcher) == ["Term", "Step"]


async def test_writer_whose_acknowledgement_is_lost_to_a_takeover_is_fenced(
    connect_as: ConnectAs, run: str, relay: Relay
) -> None:
    other, bus = await connect_as("trainer", id="other"), await relay.connect("trainer", run)
    ledger = await opened(bus, "w")
    relay.deaf = True
    appending = asyncio.create_task(ledger.append(examples.term(run=run)))
    async for _ in other.read(LEDGER, follow=True):
        break
    taker = await opened(other, "taker")
    await taker.append(examples.term(run=run))
    relay.deaf = False
    relay.cut()
    with pytest.raises(Fenced, match=f"/{run}/trainer/other"):
        await appending


async def test_same_event_twice_in_a_row_is_two_messages(connect_as: ConnectAs, run: str) -> None:
    ledger = await opened(await connect_as("trainer"), "w")
    assert await ledger.append(examples.closed(run=run)) == 1
    assert await ledger.append(examples.closed(run=run)) == 2


async def test_every_race_has_one_winner(connect_as: ConnectAs, run: str) -> None:
    buses = [await connect_as("trainer") for _ in range(4)]
    for round_ in range(25):
        ledgers = [await opened(bus, f"{round_}-{number}") for number, bus in enumerate(buses)]
        # The same event from all: only the writer's id tells them apart.
        outcomes = await asyncio.gather(
            *(ledger.append(examples.term(run=run)) for ledger in ledgers), return_exceptions=True
        )
        assert [outcome for outcome in outcomes if not isinstance(outcome, BaseException)] == [round_ + 1]
        assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 3
    assert (await buses[0].state(LEDGER)).messages == 25


async def test_append_survives_a_server_that_is_killed(fragile: Fragile) -> None:
    bus = await fragile.connect("trainer")
    ledger = await opened(bus, "w")
    await ledger.append(examples.term(run=fragile.run))
    for sequence in range(2, 5):
        appending = asyncio.create_task(ledger.append(examples.step(run=fragile.run)))
        fragile.kill()
        await until(lambda: not bus.connected)
        fragile.start()
        assert await appending == sequence
    assert (await bus.state(LEDGER)).messages == 4


async def test_abandoned_append_closes_the_ledger_until_it_is_opened_again(
    connect_as: ConnectAs, run: str, relay: Relay
) -> None:
    bus = await relay.connect("trainer", run)
    ledger = await opened(bus, "w")
    relay.deaf = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await ledger.append(examples.term(run=run))
    relay.deaf = False
    relay.cut()
    with pytest.raises(BusError, match="an append to it was abandoned: open it, and read it again"):
        await ledger.append(examples.step(run=run))
    await ledger.open()
    assert await ledger.append(examples.step(run=run)) == ledger.last_sequence


async def test_role_without_the_right_to_write_is_denied_at_once(connect_as: ConnectAs, run: str) -> None:
    ledger = await opened(await connect_as("generator"), "w")
    with pytest.raises(PublishFailed, match="role generator may not publish"):
        await ledger.append(examples.term(run=run))
