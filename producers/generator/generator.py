"""The generator: leases groups, plays them, publishes rollouts, and swaps weights as they are announced."""

from __future__ import annotations

import asyncio
import logging
import time

from bus import Bus, Consumer, Delivery, Telemetry, bury
from schemas import TASKS, WEIGHTS_MISSING, BusError, Failure, GroupTask, Rollout, WeightsError

from .evaluation import Evaluator
from .feed import WeightsFeed
from .gate import Gate
from .lease import Lease
from .play import Player, failed_rollout
from .settings import GeneratorSettings

log = logging.getLogger("headrace.generator")
LEASES = "generators"
"""Durable consumer of TASKS that all generators of a run share."""
FETCH_WAIT_S = 1.0
"""How long one pull waits; short, because a pull may stall once after a reconnect."""


class Generator:
    """Runs until weights of the run's last step are in use, and evaluated, or ``stop`` is set."""

    def __init__(
        self,
        bus: Bus,
        gate: Gate,
        feed: WeightsFeed,
        player: Player,
        settings: GeneratorSettings,
        *,
        group_size: int,
        steps: int,
        evaluator: Evaluator | None = None,
    ) -> None:
        """``group_size``: rollouts of one task. ``steps``: weights of this version are the run's last.

        ``evaluator``: of the one generator that evaluates, on the same gate; ``feed`` offers what is due to it.
        """
        self._bus = bus
        self._gate = gate
        self._feed = feed
        self._player = player
        self._settings = settings
        self._group_size = group_size
        self._steps = steps
        self._evaluator = evaluator
        self._leased: list[GroupTask] = []
        self._freed = asyncio.Event()
        self._finished = asyncio.Event()
        self._published = 0
        self._ready_at: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Raises EngineError, WeightsError or BusError; leases still held are then given back."""
        interval_s = self._settings.metric_interval_s
        async with Telemetry(self._bus, self._gauges, interval_s=interval_s) as telemetry:
            self._telemetry = telemetry
            following = asyncio.create_task(self._follow())
            endings = [asyncio.create_task(stop.wait()), asyncio.create_task(self._finished.wait())]
            working = asyncio.create_task(self._work())
            try:
                done, _ = await asyncio.wait([following, working, *endings], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (working, following, *endings):
                    task.cancel()
                await asyncio.gather(working, following, *endings, return_exceptions=True)
                await self._gate.stop()

    async def _follow(self) -> None:
        if self._evaluator is not None:  # What is due must be known before the first weights are offered.
            await self._evaluator.catch_up()
        await self._feed.follow()

    async def _work(self) -> None:
        log.info("starting the engine")
        await self._gate.start()
        while self._gate.version is None:
            await self._swap()
        self._ready_at = time.monotonic()
        self._telemetry.ready()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._swap_for_ever())
            tasks.create_task(self._lease_for_ever(tasks))

    async def _swap(self) -> None:
        fetched = await self._feed.next()
        try:
            report = await self._gate.swap(fetched.weights, fetched.folder)
        except WeightsError as error:
            if not await self._feed.overtaken(fetched.weights):
                raise
            log.warning("weights %d are passed over for newer ones: %s", fetched.weights.version, error)
            return
        self._telemetry.swapped(report.version, report.details() | {"prefetch_s": fetched.prefetch_s})
        log.info(
            "weights %d in use: pause %.3f s, %d kept, %d resubmitted, %d too late",
            report.version, report.pause_s, report.kept, report.resubmitted, report.aborted_stale,
        )  # fmt: skip

    async def _swap_for_ever(self) -> None:
        while True:
            if self._evaluator is not None:
                await self._evaluator.evaluate()
                self._freed.set()
            assert self._gate.version is not None
            if self._gate.version >= self._steps:
                self._finished.set()
            await self._swap()

    async def _lease_for_ever(self, tasks: asyncio.TaskGroup) -> None:
        consumer = await self._bus.consumer(TASKS, LEASES, ack="explicit", ack_wait_s=self._settings.lease_s)
        while True:
            for delivery in await self._pull(consumer):
                task = await self._task_of(delivery)
                if task is not None:
                    self._leased.append(task)
                    tasks.create_task(self._play_group(task, delivery))

    async def _pull(self, consumer: Consumer) -> list[Delivery]:
        """As many tasks as there is room for."""
        while (room := self._room()) < 1:
            self._freed.clear()
            await self._freed.wait()
        return await consumer.fetch(room, FETCH_WAIT_S)

    def _room(self) -> int:
        """Groups that may be leased now."""
        evaluating = 0 if self._evaluator is None else self._evaluator.in_play
        room = (self._settings.concurrency - self._in_play - evaluating) // self._group_size
        if not evaluating:
            return room
        # While swaps are held, a group may need newer weights than ours, and another generator may have them: one
        # by one, and none beside a group that waits, so that no more than that one is kept from the others.
        version = -1 if self._gate.version is None else self._gate.version
        return 0 if any(task.least_version > version for task in self._leased) else min(room, 1)

    @property
    def _in_play(self) -> int:
        """Rollouts of leased groups."""
        return sum(task.size for task in self._leased)

    async def _task_of(self, delivery: Delivery) -> GroupTask | None:
        event = delivery.event
        if isinstance(event, GroupTask):
            return event
        await bury(self._bus, delivery, TASKS, delivery.invalid or "it is not a task")
        try:
            await delivery.ack()
        except BusError as error:
            # It comes again when its lease ends; the dead letter is stored once.
            log.warning("task %d was not acked: %s", delivery.sequence, error)
        return None

    async def _play_group(self, task: GroupTask, delivery: Delivery) -> None:
        try:
            async with Lease(delivery, lease_s=self._settings.lease_s) as lease:
                refusal = self._refusal(task, delivery)
                if refusal is not None:
                    await self._refuse(task, delivery, refusal)
                    lease.done()
                elif await self._play_all(task, delivery.delivered):
                    lease.done()
        finally:
            self._leased.remove(task)
            self._freed.set()

    async def _play_all(self, task: GroupTask, attempt: int) -> bool:
        """Play and publish every member. False when one is missing, because its environment cancelled our task."""
        await self._gate.until_version(task.least_version)
        async with asyncio.TaskGroup() as group:
            plays = [group.create_task(self._play_member(task, member, attempt)) for member in range(task.size)]
        missing = sum(play.cancelled() for play in plays)  # A TaskGroup takes these for ended.
        if missing:
            log.error("group %d is given back: %d of its plays were cancelled from within", task.group, missing)
        return not missing

    async def _play_member(self, task: GroupTask, member: int, attempt: int) -> None:
        rollout = await self._player.play(task, member, generator=self._bus.id, attempt=attempt)
        await self._publish(rollout)

    async def _publish(self, rollout: Rollout) -> None:
        await self._bus.publish(rollout)
        self._published += 1

    def _refusal(self, task: GroupTask, delivery: Delivery) -> Failure | None:
        """Why the group is not played; None where it is."""
        if task.size != self._group_size:
            return Failure(
                kind="refused",
                message=f"it asks for {task.size} members, and trainer.group_size is {self._group_size} here: give "
                "dispatcher, generators and trainer one configuration",
            )
        if not self._player.knows(task.env):
            return Failure(kind="refused", message=f"environment {task.env!r} is not in this generator's configuration")
        if task.least_version >= self._steps:
            return Failure(
                kind="refused",
                message=f"it asks for weights {task.least_version}, and the run ends with step {self._steps}",
            )
        if delivery.delivered > self._settings.max_deliveries:
            return Failure(
                kind="redelivered",
                message=f"delivered {delivery.delivered} times: whoever plays it does not come back",
            )
        return None

    async def _refuse(self, task: GroupTask, delivery: Delivery, failure: Failure) -> None:
        """Put the task into DEAD, and end its group with failed members: it would stay open for ever without."""
        await bury(self._bus, delivery, TASKS, failure.message)
        # As many as whoever issued it, or the trainer, may wait for.
        for member in range(max(task.size, self._group_size)):
            await self._publish(
                failed_rollout(task, member, failure, generator=self._bus.id, attempt=delivery.delivered)
            )

    def _gauges(self) -> dict[str, float]:
        # The trainer puts weights whole for a generator that says so.
        missing = {} if self._feed.missing is None else {WEIGHTS_MISSING: float(self._feed.missing)}
        if self._ready_at is None:
            return missing
        ready_s = time.monotonic() - self._ready_at
        return missing | {
            "in_play": self._in_play,
            "requests": self._gate.in_flight,
            "sampled_tokens": self._gate.sampled_tokens,
            "rollouts": self._published,
            "evaluation_left": 0 if self._evaluator is None else self._evaluator.left,
            "ready_s": ready_s,
            "busy_s": min(self._gate.busy_s, ready_s),
            **{f"engine_{name}": value for name, value in self._gate.engine_gauges().items()},
        }
