"""The generator on a real server: leases, publications, swaps; with an engine that answers at once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus import Bus, FileWeights, Ledger
from environments import Environment, Outcome, Policy, Sample
from producers import Evaluator, Gate, Generator, GeneratorSettings, Player, WeightsFeed
from producers.generator.generator import LEASES
from schemas import (
    DEAD,
    ROLLOUTS,
    TASKS,
    EngineError,
    EvaluationSettings,
    GroupTask,
    Rollout,
    Span,
    Task,
    Weights,
    WeightsError,
)
from tests.examples import task
from tests.producers.generator.test_gate import PuppetEngine
from tests.producers.generator.test_play import Letters
from tests.waiting import eventually

SETTINGS = GeneratorSettings(concurrency=8, lease_s=2.0, max_deliveries=2, retries=0, metric_interval_s=60.0)
SIZE = 2


class LabelledEngine(PuppetEngine):
    """Answers every request at once, under the version that it was labelled with."""

    version = 0

    async def label(self, version: int) -> None:
        self.version = version

    async def sample(self, request: object) -> Sample:  # type: ignore[override]
        spans = [Span(self.version, 0, 1)]
        return Sample(tokens=[0], logprobs=[-0.5], spans=spans, finish="stop", cached=0)


class Turn(Environment):
    """One turn; waits for ``go_on`` before it ends."""

    def __init__(self, go_on: asyncio.Event | None = None) -> None:
        super().__init__(seed=0)
        self.go_on = go_on
        self.begun = asyncio.Event()

    def task(self, index: int) -> Task:
        return Task(prompt="p")

    async def play(self, task: Task, policy: Policy) -> Outcome:
        await policy.say("p")
        self.begun.set()
        if self.go_on is not None:
            await self.go_on.wait()
        return Outcome(reward=1.0)


class Mill:
    """A run in one test: its store, the trainer's ledger, and generators."""

    def __init__(self, connect_as: Any, folder: Path) -> None:
        self.connect_as = connect_as
        self.store = FileWeights(folder, 0)
        self._numbers = itertools.count()

    async def announce(self, version: int, **fields: Any) -> None:
        if version == 0:
            self.trainer: Bus = await self.connect_as("trainer")
            self.ledger = Ledger(self.trainer, "trainer")
            await self.ledger.open()
        stored = await self.store.put(b"weights %d" % version, version=version)
        truth = {"sha256": stored.sha256, "size_bytes": stored.size_bytes, "location": stored.location}
        await self.ledger.append(Weights(run=self.trainer.run, version=version, dtype="float32", **(truth | fields)))

    async def issue(self, group: int, *, least_version: int = 0) -> GroupTask:
        dispatcher: Bus = await self.connect_as("dispatcher")
        issued = task(run=dispatcher.run, group=group, index=group, size=SIZE, least_version=least_version)
        await dispatcher.publish(issued)
        return issued

    @asynccontextmanager
    async def generator(
        self,
        environment: Environment,
        *,
        engine: PuppetEngine | None = None,
        steps: int = 99,
        settings: GeneratorSettings = SETTINGS,
        play_timeout_s: float = 8.0,
        evaluation: EvaluationSettings | None = None,
        evaluated: Environment | None = None,
    ) -> AsyncIterator[asyncio.Task[None]]:
        bus: Bus = await self.connect_as("generator", id=f"g{next(self._numbers)}")
        gate = Gate(
            engine or LabelledEngine(),
            temperature=1.0,
            max_off_policy_steps=2,
            abort_late=True,
            prefix_on_swap="keep",
        )

        def player(played: Environment) -> Player:
            environments = {"reverse": played}
            return Player(gate, Letters(), environments, max_tokens=64, play_timeout_s=play_timeout_s, retries=0)  # type: ignore[arg-type]

        evaluator = None
        if evaluation is not None and evaluated is not None:
            evaluator = Evaluator(
                bus, gate, player(evaluated), {"reverse": evaluated}, evaluation,
                steps=steps, concurrency=settings.concurrency,
            )  # fmt: skip
        feed = WeightsFeed(bus, self.store, None if evaluator is None else evaluator.due)
        generator = Generator(
            bus, gate, feed, player(environment), settings, group_size=SIZE, steps=steps, evaluator=evaluator
        )
        stop = asyncio.Event()
        running = asyncio.create_task(generator.run(stop))
        try:
            yield running
        finally:
            stop.set()
            await asyncio.gather(running, return_exceptions=True)

    async def rollouts(self, count: int) -> list[Rollout]:
        """The first ``count`` rollouts of the log, as soon as they are there."""
        reader: Bus = await self.connect_as("reader")
        found: list[Rollout] = []
        async for logged in reader.read(ROLLOUTS, follow=True):
            assert isinstance(logged.event, Rollout)
            found.append(logged.event)
            if len(found) == count:
                break
        return found

    async def settled(self, tasks: int) -> None:
        """Wait until so many tasks are acknowledged and none is leased."""
        bus: Bus = await self.connect_as("generator")
        consumer = await bus.consumer(TASKS, LEASES, ack="explicit", ack_wait_s=SETTINGS.lease_s)

        async def done() -> bool:
            info = await consumer.info()
            return info.ack_floor == tasks and info.ack_pending == 0

        await eventually(done)


@pytest.fixture
def mill(connect_as: Any, tmp_path: Path) -> Mill:
    return Mill(connect_as, tmp_path)


async def test_every_member_is_published_and_then_the_lease_is_acknowledged(mill: Mill) -> None:
    await mill.announce(0)
    await mill.issue(0)
    async with mill.generator(Turn()):
        rollouts = await mill.rollouts(SIZE)
        await mill.settled(1)
    assert sorted((each.group, each.member) for each in rollouts) == [(0, 0), (0, 1)]
    assert {each.generator for each in rollouts} == {"g0"}
    assert {each.least_version for each in rollouts} == {0}


async def test_nothing_is_played_before_the_run_s_weights_are_in_place(mill: Mill) -> None:
    await mill.announce(0)
    await mill.announce(1)
    await mill.issue(0)
    async with mill.generator(Turn()):
        rollouts = await mill.rollouts(SIZE)
    assert {each.least_version for each in rollouts} == {1}, "the newest was announced before the start"


async def test_a_group_waits_for_its_least_version(mill: Mill) -> None:
    await mill.announce(0)
    await mill.issue(0, least_version=2)
    await mill.issue(1)
    async with mill.generator(Turn()):
        assert {each.group for each in await mill.rollouts(SIZE)} == {1}
        await mill.announce(1)
        await mill.announce(2)
        later = (await mill.rollouts(2 * SIZE))[SIZE:]
    assert {(each.group, each.least_version) for each in later} == {(0, 2)}


async def test_a_generator_that_ends_gives_its_lease_back_at_once(mill: Mill) -> None:
    await mill.announce(0)
    await mill.issue(0)
    hanging = Turn(go_on=asyncio.Event())
    patient = GeneratorSettings(concurrency=8, lease_s=600.0, metric_interval_s=60.0)
    async with mill.generator(hanging, settings=patient):
        await hanging.begun.wait()
    async with mill.generator(Turn(), settings=patient):
        rollouts = await mill.rollouts(SIZE)
    assert {each.generator for each in rollouts} == {"g1"}
    assert {each.attempt for each in rollouts} == {2}


async def test_the_lease_of_a_silent_generator_ends_and_another_plays_the_group(mill: Mill) -> None:
    await mill.announce(0)
    await mill.issue(0)
    silent: Bus = await mill.connect_as("generator", id="silent")
    consumer = await silent.consumer(TASKS, LEASES, ack="explicit", ack_wait_s=SETTINGS.lease_s)
    assert len(await consumer.fetch(1, 5.0)) == 1
    async with mill.generator(Turn()):
        rollouts = await mill.rollouts(SIZE)
    assert {each.generator for each in rollouts} == {"g0"}


async def test_a_lease_is_renewed_for_as_long_as_the_play_lasts(mill: Mill) -> None:
    await mill.announce(0)
    await mill.issue(0)
    slow = Turn(go_on=asyncio.Event())
    # Long enough for a machine on which nobody has a turn for some seconds.
    settings = msgspec.structs.replace(SETTINGS, lease_s=6.0)
    full = msgspec.structs.replace(settings, concurrency=SIZE)  # or it might take the group itself a second time
    async with mill.generator(slow, settings=full, play_timeout_s=60.0):
        await slow.begun.wait()
        async with mill.generator(Turn(), settings=settings):  # Only now: whoever is first takes the group.
            # More than one lease time passes, and the other generator asks for tasks all the while.
            deadline = asyncio.get_running_loop().time() + 1.5 * settings.lease_s

            async def leases_have_passed() -> bool:
                return asyncio.get_running_loop().time() > deadline

            await eventually(leases_have_passed)
            assert (await mill.trainer.state(ROLLOUTS)).messages == 0, "the other generator has played it"
            assert slow.go_on is not None
            slow.go_on.set()
            rollouts = await mill.rollouts(SIZE)
    assert {each.attempt for each in rollouts} == {1}


async def test_a_group_that_nobody_survives_is_answered_with_error_members(mill: Mill) -> None:
    await mill.announce(0)
    await mill.issue(0)
    victim: Bus = await mill.connect_as("generator", id="victim")
    consumer = await victim.consumer(TASKS, LEASES, ack="explicit", ack_wait_s=SETTINGS.lease_s)
    for _ in range(SETTINGS.max_deliveries):
        (delivery,) = await consumer.fetch(1, 5.0)
        await delivery.nak()
    async with mill.generator(Turn()):
        rollouts = await mill.rollouts(SIZE)
        await mill.settled(1)
    assert [each.error.kind for each in rollouts if each.error] == ["redelivered"] * SIZE
    (letter,) = [logged async for logged in victim.read(DEAD)]
    assert "delivered 3 times" in letter.event.reason  # type: ignore[union-attr]


async def test_a_play_that_will_not_end_does_not_keep_the_generator_from_ending(mill: Mill) -> None:
    release = asyncio.Event()

    class Stubborn(Turn):
        async def play(self, task: Task, policy: Policy) -> Outcome:
            self.begun.set()
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()
            return Outcome(reward=1.0)

    await mill.announce(0)
    await mill.issue(0)
    stubborn = Stubborn()
    async with mill.generator(stubborn):
        await stubborn.begun.wait()
    release.set()
    assert (await mill.trainer.state(ROLLOUTS)).messages == 0


async def test_two_generators_share_the_groups(mill: Mill) -> None:
    await mill.announce(0)
    both = [Turn(), Turn()]
    narrow = GeneratorSettings(concurrency=SIZE, metric_interval_s=60.0)
    first, second = (Turn(go_on=asyncio.Event()) for _ in both)
    async with mill.generator(first, settings=narrow), mill.generator(second, settings=narrow):
        await mill.issue(0)
        await mill.issue(1)
        await asyncio.gather(first.begun.wait(), second.begun.wait())
        for scene in (first, second):
            assert scene.go_on is not None
            scene.go_on.set()
        rollouts = await mill.rollouts(2 * SIZE)
    assert {each.generator for each in rollouts} == {"g0", "g1"}
    assert len({(each.group, each.member) for each in rollouts}) == 2 * SIZE


async def test_it_ends_when_the_last_version_is_in_use(mill: Mill) -> None:
    await mill.announce(0)
    async with mill.generator(Turn(), steps=1) as running:
        await mill.announce(1)
        await running


async def test_a_dead_engine_ends_the_generator(mill: Mill) -> None:
    class DeadEngine(LabelledEngine):
        async def sample(self, request: object) -> Sample:  # type: ignore[override]
            raise EngineError("the engine has died")

    await mill.announce(0)
    await mill.issue(0)
    async with mill.generator(Turn(), engine=DeadEngine()) as running:
        with pytest.raises(BaseExceptionGroup) as caught:
            await running
    told, others = caught.value.split(EngineError)
    assert told is not None
    assert others is None


async def test_weights_that_are_overtaken_while_they_are_fetched_are_skipped(mill: Mill) -> None:
    await mill.announce(0)
    bus: Bus = await mill.connect_as("generator")
    feed = WeightsFeed(bus, mill.store)
    following = asyncio.create_task(feed.follow())
    assert (await feed.next()).weights.version == 0
    fetch, overtaken = mill.store.fetch, []

    async def slow_fetch(weights: Weights) -> Path:
        if weights.version == 1 and not overtaken:
            overtaken.append(True)
            await mill.announce(2)
        return await fetch(weights)

    mill.store.fetch = slow_fetch  # type: ignore[method-assign]
    await mill.announce(1)
    versions = [(await feed.next()).weights.version]
    if versions == [1]:  # the announcement of 2 was not yet heard when the fetch of 1 ended
        versions.append((await feed.next()).weights.version)
    following.cancel()
    assert versions[-1] == 2


async def test_weights_pruned_before_their_successor_was_heard_of_are_passed_over(mill: Mill) -> None:
    await mill.announce(0)
    feed = WeightsFeed(await mill.connect_as("generator"), mill.store)
    following = asyncio.create_task(feed.follow())
    assert (await feed.next()).weights.version == 0
    fetch = mill.store.fetch

    async def go_deaf_while_the_trainer_goes_on() -> None:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await mill.announce(2)

    async def pruned(weights: Weights) -> Path:
        if weights.version == 1:
            await go_deaf_while_the_trainer_goes_on()
            raise WeightsError("weights 1 were pruned")
        return await fetch(weights)

    mill.store.fetch = pruned  # type: ignore[method-assign]
    await mill.announce(1)
    assert (await feed.next()).weights.version == 2


async def test_weights_pruned_between_verification_and_load_are_passed_over(mill: Mill) -> None:
    class Forgetful(LabelledEngine):
        async def load(self, folder: Path) -> None:
            if folder.name == sha256_of_weights_1:
                await mill.announce(2)
                raise WeightsError("weights 1 were pruned")

    sha256_of_weights_1 = hashlib.sha256(b"weights 1").hexdigest()
    await mill.announce(0)
    async with mill.generator(Turn(), engine=Forgetful()):
        await mill.issue(0)
        await mill.rollouts(SIZE)
        await mill.announce(1)
        await mill.issue(1, least_version=2)
        rollouts = await mill.rollouts(2 * SIZE)
    assert [each.least_version for each in rollouts[SIZE:]] == [2] * SIZE


async def test_a_group_whose_environment_cancels_the_generator_s_tasks_is_played_again_until_it_is_whole(
    mill: Mill,
) -> None:
    class Vandal(Turn):
        plays = 0

        async def play(self, task: Task, policy: Policy) -> Outcome:
            self.plays += 1
            if self.plays == 1:
                next(each for each in asyncio.all_tasks() if "_play_member" in repr(each)).cancel()
                await asyncio.Event().wait()
            return await super().play(task, policy)

    await mill.announce(0)
    await mill.issue(0)
    async with mill.generator(Vandal()):
        rollouts = await mill.rollouts(SIZE)
        await mill.settled(1)
    assert {each.member for each in rollouts} == set(range(SIZE))
