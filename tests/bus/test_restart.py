"""What is promised when the server is killed."""

from __future__ import annotations

import asyncio
from collections import Counter

from bus import Bus
from schemas import ROLLOUTS, Rollout
from tests import examples

from .conftest import Fragile, until

KILLS, PUBLISHERS = 3, 8


async def test_nothing_acknowledged_is_lost_or_stored_twice_when_the_server_is_killed_under_load(
    fragile: Fragile,
) -> None:
    bus = await fragile.connect("generator")
    acknowledged: dict[tuple[int, int], int] = {}
    stop = asyncio.Event()

    async def publish(group: int) -> None:
        member = 0
        while not stop.is_set():
            published = await bus.publish(examples.rollout(run=fragile.run, group=group, member=member))
            acknowledged[group, member] = published.sequence
            member += 1

    async def more() -> None:
        enough = len(acknowledged) + 100
        await until(lambda: len(acknowledged) > enough)

    publishers = [asyncio.create_task(publish(group)) for group in range(PUBLISHERS)]
    for _ in range(KILLS):
        await more()
        fragile.kill()
        fragile.start()
    await more()
    stop.set()
    await asyncio.gather(*publishers)
    stored = await _stored(bus)
    assert set(Counter(stored.values()).values()) == {1}
    assert {sequence: member for member, sequence in acknowledged.items()} == stored


async def _stored(bus: Bus) -> dict[int, tuple[int, int]]:
    stored = {}
    async for logged in bus.read(ROLLOUTS):
        assert isinstance(logged.event, Rollout)
        stored[logged.sequence] = (logged.event.group, logged.event.member)
    return stored
