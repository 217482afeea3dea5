from __future__ import annotations

import asyncio

from bus import Bus
from consumers.sinks.following import following
from schemas import ROLLOUTS, Rollout
from tests import examples
from tests.waiting import eventually


async def publish(writer: Bus, *groups: int) -> None:
    for group in groups:
        await writer.publish(examples.rollout(run=writer.run, group=group))


async def groups(sink: Bus, stop: asyncio.Event, *, start: int = 1) -> list[int]:
    return [
        logged.event.group
        async for logged in following(sink, ROLLOUTS, stop, start=start)
        if isinstance(logged.event, Rollout)
    ]


async def test_messages_come_in_order_also_those_published_later(writer: Bus, sink: Bus) -> None:
    await publish(writer, 0, 1)
    stop, seen = asyncio.Event(), []
    async for logged in following(sink, ROLLOUTS, stop):
        seen.append(logged.sequence)
        if len(seen) == 2:
            await publish(writer, 2, 3)
        if len(seen) == 4:
            stop.set()
    assert seen == [1, 2, 3, 4]


async def test_stop_ends_a_follower_that_waits(writer: Bus, sink: Bus) -> None:
    stop, waiting = asyncio.Event(), asyncio.Event()

    async def follow() -> list[int]:
        seen = []
        async for logged in following(sink, ROLLOUTS, stop):
            seen.append(logged.sequence)
            waiting.set()
        return seen

    await publish(writer, 0)
    follower = asyncio.create_task(follow())
    await waiting.wait()
    stop.set()
    assert await follower == [1]


async def test_what_the_log_has_at_the_stop_is_still_given(writer: Bus, sink: Bus) -> None:
    stop, seen = asyncio.Event(), []
    await publish(writer, 0, 1, 2)
    async for logged in following(sink, ROLLOUTS, stop):
        seen.append(logged.sequence)
        if len(seen) == 1:
            stop.set()
            await publish(writer, 3)
    assert seen == [1, 2, 3, 4]


async def test_reading_may_begin_later_in_the_log(writer: Bus, sink: Bus) -> None:
    await publish(writer, 0, 1, 2)
    stop = asyncio.Event()
    stop.set()
    assert await groups(sink, stop, start=2) == [1, 2]
    assert await groups(sink, stop, start=4) == []


async def test_cancelled_follower_leaves_nothing_behind(writer: Bus, sink: Bus) -> None:
    before = asyncio.all_tasks()
    follower = asyncio.create_task(groups(sink, asyncio.Event()))
    await publish(writer, 0)
    follower.cancel()
    await asyncio.wait({follower})
    assert follower.cancelled()

    async def nothing_is_left() -> bool:
        return asyncio.all_tasks() == before

    await eventually(nothing_is_left)
