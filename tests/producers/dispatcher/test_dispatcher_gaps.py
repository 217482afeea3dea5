"""A hole in what the dispatcher reads is a fault: it would issue more or fewer groups than there are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus import Ledger
from schemas import LEDGER, TASKS, LogGap, StreamSpec
from tests.examples import closed
from tests.producers.dispatcher.test_dispatcher import dispatcher, first_tasks, running


@pytest.mark.parametrize(("spec", "words"), [(TASKS, "TASKS has no messages 3"), (LEDGER, "LEDGER has no messages 3")])
async def test_a_dispatcher_that_starts_on_a_log_with_a_hole_says_so(
    spec: StreamSpec, words: str, connect_as: Any
) -> None:
    admin, bus = await connect_as("admin"), await connect_as("dispatcher")
    ledger = Ledger(await connect_as("trainer"), "a")
    await ledger.open()
    async with running(bus):
        await first_tasks(bus, 8)
        for group in range(4):
            await ledger.append(closed(run=bus.run, group=group))
        await first_tasks(bus, 12)
    await admin.wire.api(f"STREAM.MSG.DELETE.{spec.name(bus.run)}", {"seq": 3, "no_erase": True})
    with pytest.raises(LogGap, match=words):
        await dispatcher(bus).run(asyncio.Event())


async def test_a_dispatcher_goes_on_where_retention_has_purged(connect_as: Any) -> None:
    bus, trainer = await connect_as("dispatcher"), await connect_as("trainer")
    async with running(bus):
        await first_tasks(bus, 8)
    await trainer.purge(TASKS, before=7)
    async with running(await connect_as("dispatcher")) as working:
        assert not working.done()
    assert (await bus.state(TASKS)).last_sequence == 8
