"""Our way, with the code that a run uses: ``Bus.publish`` in a generator, ``Inbox`` and ``Collector`` in a trainer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from pathlib import Path

from bus import Address, Bus, BusThread, EmbeddedServer, Logged, connect
from bus.settings import LogSettings, WeightsSettings
from consumers.trainer import Rules
from consumers.trainer.batch import lengths, micro_batches
from consumers.trainer.collector import Collector
from consumers.trainer.groups import Assembly
from consumers.trainer.packing import pack
from schemas import ROLLOUTS, Closed, Rollout, Span, Timings, Turn

from .rollouts import CONTEXT, GROUP, ROW_TOKENS, VOCABULARY, Sampled, step_rollouts
from .way import Resting, Sent, Way, window

RUN = "bench"
STEP = 1
RULES = Rules(max_off_policy_steps=8, stale="drop", advantage="std", row_tokens=ROW_TOKENS)


class NatsServer:
    """The embedded server with the run's streams, as ``headrace up`` starts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = EmbeddedServer.start(folder)
        self.place = str(folder)
        asyncio.run(self.prepare())

    async def prepare(self) -> None:
        """Make what is stored into."""
        await _apply_topology(self._server.address("topology"))

    @property
    def pid(self) -> int:
        return self._server.pid

    def restart(self) -> None:
        self._server.stop()
        self._server = EmbeddedServer.start(self._folder)

    def stop(self) -> None:
        self._server.stop()


async def _apply_topology(address: Address) -> None:
    bus = await connect(address, run=RUN, role="topology", id="bench")
    try:
        await bus.apply_topology(LogSettings(), WeightsSettings())
    finally:
        await bus.close()


def address_of(place: str, role: str) -> Address:
    """Where ``role`` connects to the server in the folder ``place``."""
    addresses = EmbeddedServer.find(Path(place))
    assert addresses is not None, f"no server runs on {place}"
    return addresses[role]  # type: ignore[index]


def event_of(sampled: Sampled) -> Rollout:
    """The event that a play leaves, as ``producers/generator/play.py`` makes it."""
    n_sampled = len(sampled.logprobs)
    return Rollout(
        run=RUN,
        group=sampled.group,
        member=sampled.member,
        env="bench",
        index=sampled.group,
        generator="bench",
        attempt=1,
        tokens=sampled.tokens.astype("<i4", copy=False).tobytes(),
        logprobs=sampled.logprobs.astype("<f4", copy=False).tobytes(),
        turns=[Turn(CONTEXT, n_sampled, 0, "stop")],
        spans=[Span(0, 0, n_sampled)],
        reward=sampled.reward,
        timings=Timings(started_at=time.time(), total_s=1.0, sampling_s=1.0),
    )


class LogWriter:
    """Publishes as a generator does: each rollout in a task of its own, a bounded number of them at once."""

    def __init__(self, place: str) -> None:
        self._runner = asyncio.Runner()
        self._bus: Bus = self._runner.run(
            connect(address_of(place, "generator"), run=RUN, role="generator", id=f"bench-{os.getpid()}")
        )

    def rest(self) -> None:
        self._runner.run(asyncio.sleep(0.01))

    def write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        self._runner.run(self._write(rollouts, sent))

    async def _write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        room: asyncio.Semaphore | None = None

        async def publish(sampled: Sampled, room: asyncio.Semaphore) -> None:
            await self._bus.publish(event_of(sampled))
            sent(sampled.number)
            room.release()

        async with asyncio.TaskGroup() as tasks:
            for sampled in rollouts:
                room = room or asyncio.Semaphore(window(len(sampled.tokens)))
                await room.acquire()
                tasks.create_task(publish(sampled, room))


class NoRecords:
    """The ledger and the dead letters of a collector that meets nothing unusable."""

    def close(self, closed: Closed) -> None:
        raise AssertionError(f"group {closed.group} was closed: {closed.reason}")

    def bury(self, logged: Logged, reason: str) -> None:
        raise AssertionError(f"message {logged.sequence} cannot be used: {reason}")

    def issued_groups(self) -> int:
        return 2**40

    def rollout_at(self, sequence: int) -> Logged | None:
        raise AssertionError(f"message {sequence} is asked for")


class LogReader(Resting):
    """A trainer without a learner: it collects, judges and packs, and settles each batch when it is packed."""

    def __init__(self, place: str) -> None:
        self._thread = BusThread(address_of(place, "trainer"), run=RUN, role="trainer", id="bench")
        self._thread.start()
        self.inbox = self._thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=3600.0, start=1)
        self._assembly = Assembly(GROUP)

    def read(self, count: int, length: int) -> None:
        batch = step_rollouts(length)
        for _ in range(count // batch):
            self.step(batch // GROUP)

    def step(self, groups_per_step: int) -> None:
        """One batch, from the inbox to the arrays that are trained."""
        collector = Collector(
            self.inbox, self._assembly, RULES, NoRecords(), run=RUN, groups_per_step=groups_per_step,
            vocabulary=VOCABULARY,
        )  # fmt: skip
        groups, rollouts = collector.collect(STEP, lambda: None)
        packing = pack(lengths(groups, rollouts, RULES), row_tokens=ROW_TOKENS, micro_batch_tokens=ROW_TOKENS)
        micro_batches(STEP, groups, packing, rollouts, RULES)
        mark = collector.low_water(groups)
        collector.settle(groups)
        self.inbox.ack_through(mark)

    def take(self, timeout_s: float) -> int | None:
        delivery = self.inbox.get(timeout_s)
        if delivery is None:
            return None
        return delivery.event.group * GROUP + delivery.event.member if isinstance(delivery.event, Rollout) else -1

    def clear(self) -> None:
        last = self._thread.call(lambda bus: bus.state(ROLLOUTS), 10.0).last_sequence
        self._thread.call(lambda bus: bus.purge(ROLLOUTS, before=last + 1), 10.0)

    def close(self) -> None:
        self._thread.stop()


HEADRACE = Way("Headrace", NatsServer, LogWriter, LogReader)
