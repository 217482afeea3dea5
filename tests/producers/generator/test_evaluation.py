"""Evaluation on a real server: what is due is played whole by its own version, whatever happens to the generator."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bus import Bus
from environments import Outcome, Policy, Sample
from schemas import EVALUATIONS, ROLLOUTS, Evaluated, EvaluationSettings, EventInvalid, Rollout, Span, Task
from tests.producers.generator.test_generator import SETTINGS, SIZE, LabelledEngine, Mill, Turn

TASKS, SAMPLES = 3, 2
PLAYS = TASKS * SAMPLES
EVERY_2 = EvaluationSettings(every_steps=2, tasks=TASKS, samples=SAMPLES, temperature=0.25, held_out=0.5)


class HeldOut(Turn):
    """Tasks of different prompts; plays wait for ``go_on``, and those that have begun are counted."""

    def __init__(self, go_on: asyncio.Event | None = None) -> None:
        super().__init__(go_on)
        self.plays = 0

    def task(self, index: int) -> Task:
        return Task(prompt=f"p{index}")

    async def play(self, task: Task, policy: Policy) -> Outcome:
        self.plays += 1
        return await super().play(task, policy)


@pytest.fixture
def mill(connect_as: Any, tmp_path: Path) -> Mill:
    return Mill(connect_as, tmp_path)


async def evaluated(mill: Mill, count: int) -> list[Evaluated]:
    """The first ``count`` plays of evaluations, as soon as they are there."""
    reader: Bus = await mill.connect_as("reader")
    found: list[Evaluated] = []
    async for logged in reader.read(EVALUATIONS, follow=True):
        assert isinstance(logged.event, Evaluated)
        found.append(logged.event)
        if len(found) == count:
            break
    return found


def identities(version: int) -> set[tuple[int, int, int]]:
    return {(version, task, sample) for task in range(TASKS) for sample in range(SAMPLES)}


def of(events: list[Evaluated]) -> list[tuple[int, int, int]]:
    return [(event.version, event.task, event.sample) for event in events]


async def test_each_due_version_is_played_whole_although_newer_ones_are_announced(mill: Mill) -> None:
    go_on = asyncio.Event()
    held = HeldOut(go_on)
    await mill.announce(0)
    async with mill.generator(Turn(), evaluation=EVERY_2, evaluated=held, steps=7) as running:
        await held.begun.wait()
        for version in range(1, 8):
            await mill.announce(version)
        go_on.set()
        await running
    events = await evaluated(mill, 5 * PLAYS)
    assert [version for version, _, _ in of(events)] == [v for v in (0, 2, 4, 6, 7) for _ in range(PLAYS)]
    assert set(of(events)) == set().union(*(identities(version) for version in (0, 2, 4, 6, 7)))
    assert {(event.least_version, event.greatest_version) for event in events if event.version == 4} == {(4, 4)}


async def test_no_swap_while_an_evaluation_plays_and_the_run_s_groups_go_on(mill: Mill) -> None:
    go_on = asyncio.Event()
    held = HeldOut(go_on)
    await mill.announce(0)
    await mill.issue(0)
    async with mill.generator(Turn(), evaluation=EVERY_2, evaluated=held):
        await held.begun.wait()
        await mill.announce(1)
        await mill.issue(1)
        rollouts = await mill.rollouts(2 * SIZE)
        assert {each.least_version for each in rollouts} == {0}, "it has swapped in the middle of an evaluation"
        assert (await mill.trainer.state(EVALUATIONS)).messages == 0
        go_on.set()
        assert set(of(await evaluated(mill, PLAYS))) == identities(0)
        await mill.issue(2, least_version=1)
        later = (await mill.rollouts(3 * SIZE))[2 * SIZE :]
    assert {each.least_version for each in later} == {1}


async def test_a_group_that_needs_newer_weights_waits_for_the_evaluation_and_is_then_played(mill: Mill) -> None:
    """With one generator nobody else can play it: no deadlock."""
    go_on = asyncio.Event()
    held = HeldOut(go_on)
    await mill.announce(0)
    async with mill.generator(Turn(), evaluation=EVERY_2, evaluated=held):
        await held.begun.wait()
        await mill.announce(1)
        await mill.issue(0, least_version=1)
        await mill.issue(1)
        await mill.issue(2, least_version=1)
        go_on.set()
        rollouts = await mill.rollouts(3 * SIZE)
    assert {(each.group, each.least_version) for each in rollouts} >= {(0, 1), (2, 1)}
    await mill.settled(3)


async def test_who_evaluates_keeps_no_more_than_one_group_that_needs_newer_weights_from_the_others(mill: Mill) -> None:
    held = HeldOut(asyncio.Event())
    await mill.announce(0)
    async with mill.generator(Turn(), evaluation=EVERY_2, evaluated=held):
        await held.begun.wait()
        await mill.announce(1)
        for group in range(4):
            await mill.issue(group, least_version=1)
        async with mill.generator(Turn()):
            rollouts = await mill.rollouts(3 * SIZE)
    assert {each.generator for each in rollouts} == {"g1"}
    assert {each.least_version for each in rollouts} == {1}


async def test_evaluation_leaves_its_share_of_the_places_to_the_run_s_groups(mill: Mill) -> None:
    held = HeldOut(asyncio.Event())
    half = EvaluationSettings(every_steps=2, tasks=20, held_out=0.5, share=0.5)
    await mill.announce(0)
    async with mill.generator(Turn(), evaluation=half, evaluated=held):
        await held.begun.wait()
        await mill.issue(0)
        await mill.rollouts(SIZE)
        assert held.plays == SETTINGS.concurrency // 2


async def test_a_generator_that_starts_again_plays_only_what_is_missing_and_then_goes_on(mill: Mill) -> None:
    narrow = EvaluationSettings(every_steps=2, tasks=TASKS, samples=SAMPLES, held_out=0.5, share=0.3)
    first, go_on = HeldOut(), asyncio.Event()

    async def third_waits(task: Task, policy: Policy) -> Outcome:
        first.plays += 1
        if first.plays > 2:
            await go_on.wait()
        await policy.say("p")
        return Outcome(reward=1.0)

    first.play = third_waits  # type: ignore[method-assign]
    await mill.announce(0)
    async with mill.generator(Turn(), evaluation=narrow, evaluated=first):
        await evaluated(mill, 2)
    await mill.announce(1)
    second = HeldOut()
    async with mill.generator(Turn(), evaluation=narrow, evaluated=second):
        events = await evaluated(mill, PLAYS)
        await mill.issue(0, least_version=1)
        await mill.rollouts(SIZE)
    assert Counter(of(events)) == dict.fromkeys(identities(0), 1)
    assert second.plays == PLAYS - 2
    assert Counter(event.generator for event in events) == {"g0": 2, "g1": PLAYS - 2}


async def test_the_run_s_last_version_is_evaluated_before_the_generator_ends(mill: Mill) -> None:
    go_on = asyncio.Event()
    held = HeldOut(go_on)
    rarely = EvaluationSettings(every_steps=99, tasks=TASKS, samples=SAMPLES, held_out=0.5)
    await mill.announce(0)
    await mill.announce(1)
    async with mill.generator(Turn(), evaluation=rarely, evaluated=held, steps=1) as running:
        await held.begun.wait()
        assert not running.done()
        go_on.set()
        await running
    assert set(of(await evaluated(mill, 2 * PLAYS))) == identities(0) | identities(1)


async def test_evaluation_has_its_own_temperature_and_its_plays_are_no_rollouts(mill: Mill) -> None:
    temperatures: dict[str, set[float]] = {"evaluation": set(), "group": set()}

    class Thermometer(LabelledEngine):
        async def sample(self, request: Any) -> Sample:
            temperatures["evaluation" if request.id.startswith("v0-") else "group"].add(request.temperature)
            return await super().sample(request)

    await mill.announce(0)
    await mill.issue(0)
    async with mill.generator(Turn(), engine=Thermometer(), evaluation=EVERY_2, evaluated=HeldOut()):
        await evaluated(mill, PLAYS)
        rollouts = await mill.rollouts(SIZE)
    assert temperatures == {"evaluation": {0.25}, "group": {1.0}}
    assert all(isinstance(each, Rollout) for each in rollouts)
    assert (await mill.trainer.state(ROLLOUTS)).messages == SIZE


async def test_a_token_of_another_version_is_refused(mill: Mill) -> None:
    class Liar(LabelledEngine):
        async def sample(self, request: Any) -> Sample:
            return Sample(tokens=[0], logprobs=[-0.5], spans=[Span(3, 0, 1)], finish="stop", cached=0)

    await mill.announce(0)
    async with mill.generator(Turn(), engine=Liar(), evaluation=EVERY_2, evaluated=HeldOut()) as running:
        with pytest.raises(BaseExceptionGroup) as caught:
            await running
    told, _ = caught.value.split(EventInvalid)
    assert told is not None
    assert "version 3 sampled tokens in an evaluation of version 0" in str(told.exceptions)
    assert (await mill.trainer.state(EVALUATIONS)).messages == 0


async def test_a_play_that_fails_is_counted_as_one(mill: Mill) -> None:
    class Broken(HeldOut):
        async def play(self, task: Task, policy: Policy) -> Outcome:
            raise ZeroDivisionError

    await mill.announce(0)
    async with mill.generator(Turn(), evaluation=EVERY_2, evaluated=Broken()):
        events = await evaluated(mill, PLAYS)
    assert {event.error.kind for event in events if event.error} == {"environment"}
    assert set(of(events)) == identities(0)


async def test_a_generator_that_does_not_evaluate_waits_for_nothing(mill: Mill) -> None:
    await mill.announce(0)
    await mill.announce(1)
    async with mill.generator(Turn(), steps=1) as running:
        await running
    assert (await mill.trainer.state(EVALUATIONS)).messages == 0
