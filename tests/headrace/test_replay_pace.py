"""A replayed rollout waits for its time and for its weights."""

from __future__ import annotations

import asyncio

import pytest

from headrace.replay.rollouts import Pace, Publisher
from schemas import ROLLOUTS, Rollout, Span
from tests import examples
from tests.conftest import ConnectAs
from tests.logs import logged, unreadable
from tests.waiting import eventually


async def test_a_rollout_waits_for_the_weights_that_sampled_it(run: str, connect_as: ConnectAs) -> None:
    trainer, bus = await connect_as("trainer"), await connect_as("generator")
    said: list[str] = []
    publisher = Publisher(bus, 4, Pace(None, 0.0), said.append)
    versions = [(0, 0), (1, 0), (2, 2), (3, 1)]
    piece = [
        logged(examples.rollout(run="old", group=group, spans=[Span(version, 0, 6)]), sequence=group + 1)
        for group, version in versions
    ]
    publishing = asyncio.create_task(publisher.publish([piece[0], unreadable(), *piece[1:], piece[1]]))

    async def state(published: int, newest: int) -> None:
        async def holds() -> bool:
            return (publisher.published, publisher.newest) == (published, newest)

        await eventually(holds)

    await trainer.publish(examples.weights(run=run, version=0))
    await state(2, 0)
    await trainer.publish(examples.weights(run=run, version=1))
    await state(2, 1)  # the order is kept: the third waits for weights 2
    await trainer.publish(examples.weights(run=run, version=2))
    await publishing
    assert (publisher.published, publisher.duplicates, publisher.unreadable) == (5, 1, 1)
    groups = [each.event.group async for each in bus.read(ROLLOUTS) if isinstance(each.event, Rollout)]
    assert groups == [0, 1, 2, 3]


@pytest.mark.parametrize(("speed", "due"), [(1.0, [5.0, 6.0, 15.0]), (2.0, [5.0, 5.5, 10.0]), (None, [5.0, 5.0, 5.0])])
def test_pace_is_the_recorded_one_times_the_speed(speed: float | None, due: list[float]) -> None:
    pace = Pace(speed, 5.0)
    assert [pace.due(at) for at in (100.0, 101.0, 110.0)] == due


def test_what_was_waited_for_is_not_made_up_for_in_a_burst() -> None:
    pace = Pace(1.0, 0.0)
    pace.due(100.0)
    pace.delay(7.0)
    assert pace.due(101.0) == 8.0
