"""Publishing a run's rollouts into a new run, so that a trainer can be developed with no generator.

They come in their order, at their own pace or faster, and each only when the new run has announced the weights
that sampled it: in the old run it was no different, and a trainer refuses rollouts of weights that do not exist.
All that the old trainer had consumed when it announced weights v lies before the first rollout that they sampled,
so a trainer with the same batches always has what it needs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from bus import Address, Bus, BusRole, EmbeddedServer, Logged, connect
from headrace import config as configuration
from headrace.config import RunConfig
from headrace.folder import RunFolder
from headrace.inquiry import Place, ask, role_of
from headrace.server import address_from_environment, turn
from schemas import LEDGER, ROLLOUTS, TELEMETRY, Lifecycle, Metric, Rollout, RunError, Term, Weights

from .recorded import ID, committed_steps, end_of_rollouts, recorded_rollouts

HEARTBEAT_S = 10.0
LOOK_EVERY_S = 0.3
SILENT_S = 30.0
"""A trainer that has told nothing for so long has ended without saying so."""
Say = Callable[[str], None]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What was published."""

    run: str
    into: str
    rollouts: int
    duplicates: int
    """Of those, how many the server had already: the run had played a group twice."""
    unreadable: int
    """Messages of ROLLOUTS that are no rollouts, and were left out."""
    steps: int
    """Steps that the new run had committed at the end."""
    wall_s: float


class Pace:
    """When each message is due: ``speed`` times as fast as it was recorded, None for at once."""

    def __init__(self, speed: float | None, now: float) -> None:
        self._speed, self._began, self._first = speed, now, 0.0

    def due(self, recorded_at: float) -> float:
        """On the clock of ``now``."""
        self._first = self._first or recorded_at
        return self._began + (0.0 if self._speed is None else (recorded_at - self._first) / self._speed)

    def delay(self, delay_s: float) -> None:
        """Something else was waited for: what comes later comes later."""
        self._began += delay_s


class Publisher:
    """The new run's only generator. Lives in the loop of ``bus``; ``total``: messages that there will be."""

    def __init__(self, bus: Bus, total: int, pace: Pace, say: Say) -> None:
        self._bus, self._total, self._pace, self._say = bus, total, pace, say
        self._changed = asyncio.Event()
        self._following = asyncio.create_task(self._follow_weights())
        self.newest: int | None = None
        """Newest weights of the new run; None before the first."""
        self.published = self.duplicates = self.unreadable = 0

    async def publish(self, piece: list[Logged]) -> None:
        """Publish a piece of ROLLOUTS of the old run."""
        for logged in piece:
            if not isinstance(logged.event, Rollout):
                self.unreadable += 1
                continue
            rollout = msgspec.structs.replace(logged.event, run=self._bus.run)
            await self._until(self._pace.due(logged.time))
            if rollout.greatest_version is not None:
                began = time.monotonic()
                await self.weights(rollout.greatest_version, f"{self.published} of {self._total} rollouts published")
                self._pace.delay(time.monotonic() - began)
            self.duplicates += (await self._bus.publish(rollout)).duplicate
            self.published += 1

    async def weights(self, version: int, so_far: str) -> None:
        """Return when weights ``version`` are announced; now and then say what is waited for."""
        while self.newest is None or self.newest < version:
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({changed, self._following}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if self._following.done():
                self._following.result()
            if not changed.done():
                newest = "none yet" if self.newest is None else f"weights {self.newest}"
                self._say(f"{so_far}; waiting for the trainer to announce weights {version} ({newest})")
            changed.cancel()

    async def trainer_ended(self) -> None:
        """Return when the trainer of the new run has stopped, or was not heard of for long."""
        while not await self._has_ended():  # noqa: ASYNC110 - a trainer that was killed tells nobody
            await asyncio.sleep(LOOK_EVERY_S)

    async def _has_ended(self) -> bool:
        term = await self._bus.last(LEDGER, Term)
        if term is None or not isinstance(term.event, Term):
            return True
        source = f"trainer/{term.event.instance}"
        life = await self._bus.last(TELEMETRY, Lifecycle, source=source)
        beat = await self._bus.last(TELEMETRY, Metric, source=source)
        if life is not None and isinstance(life.event, Lifecycle) and life.event.state == "stopped":
            return True
        return time.time() - max([term.time, *(each.time for each in (life, beat) if each)]) > SILENT_S

    async def _until(self, due: float) -> None:
        while (left_s := due - time.monotonic()) > 0:
            if left_s > HEARTBEAT_S:
                self._say(f"{self.published} of {self._total} rollouts published; the next is due in {left_s:.0f} s")
            await asyncio.sleep(min(left_s, HEARTBEAT_S))

    async def _follow_weights(self) -> None:
        async for logged in self._bus.read(LEDGER, kinds=(Weights,), follow=True):
            if isinstance(logged.event, Weights):
                self.newest = logged.event.version
                self._changed.set()


def replay_rollouts(source: Place, recorded: RunConfig, into: RunFolder, *, speed: float | None, say: Say) -> Replayed:
    """Publish the rollouts that the run ``source`` has now into the new run ``into``.

    Without ``source.url`` the new run gets an embedded server, which stays until a trainer has made all that the
    rollouts give. recorded: the old run's configuration. speed: times the recorded pace, None for at once.
    Raises RunError where the old run has no whole log, or the new one exists.
    """
    began = time.monotonic()
    config = _configuration(source, recorded, into)
    last = end_of_rollouts(source)
    into.make()
    with _hosted(into, source.url) as address:
        _begin(Place(into.name, into, source.url), config)
        lines = _how_to_train(into, source.url, address("trainer"))
        publisher = asyncio.run(_publish(source, last, address("generator"), config, speed, lines, say))
    return Replayed(
        run=source.run,
        into=into.name,
        rollouts=publisher.published,
        duplicates=publisher.duplicates,
        unreadable=publisher.unreadable,
        steps=publisher.newest or 0,
        wall_s=round(time.monotonic() - began, 3),
    )


async def _publish(
    source: Place,
    last: int,
    address: Address,
    config: RunConfig,
    speed: float | None,
    lines: Iterable[str],
    say: Say,
) -> Publisher:
    """Publish all, and wait for the trainer where the new run has a server of its own. Returns who has done it.

    lines: to be said when it begins.
    One loop for all that waits: it takes Ctrl-C as a cancellation, while an exception raised by a signal may get lost.
    """
    bus = await connect(address, run=config.run.name, role=role_of(address, "generator"), id=ID)
    try:
        for line in lines:
            say(line)
        publisher = Publisher(bus, last, Pace(speed, time.monotonic()), say)
        async for piece in recorded_rollouts(source, last):
            await publisher.publish(piece)
        say(f"all {publisher.published} rollouts are published")
        if source.url is None:
            await publisher.weights(config.run.steps, "all rollouts are published")
            await publisher.trainer_ended()
        return publisher
    finally:
        await bus.close()


def _configuration(source: Place, old: RunConfig, into: RunFolder) -> RunConfig:
    """That of the old run, under the new name, with as many steps as its rollouts are known to give."""
    if into.exists:
        raise RunError(f"there is a run {into.name!r} in {into.path.parent} already: give another name with --into")
    steps = max(committed_steps(source), default=old.run.steps)
    return msgspec.structs.replace(
        old,
        run=msgspec.structs.replace(old.run, name=into.name, steps=min(old.run.steps, steps)),
        log=old.log if source.url else msgspec.structs.replace(old.log, replicas=1),
    )


@contextmanager
def _hosted(into: RunFolder, url: str | None) -> Iterator[Callable[[BusRole], Address]]:
    """Where each role reaches the new run: the server that was named, or an embedded one of its own."""
    if url is not None:
        yield lambda role: address_from_environment(url)
        return
    with turn(into):
        server = EmbeddedServer.start(into.nats, run=into.name)
    try:
        yield server.address
    finally:
        server.stop()


def _begin(place: Place, config: RunConfig) -> None:
    """Make the streams, which must be empty, and then the run. Raises RunError where they are not."""

    async def question(bus: Bus, goes_on: bool) -> None:
        await bus.apply_topology(config.log, config.weights)
        for spec in (ROLLOUTS, LEDGER):
            if (await bus.state(spec)).last_sequence:
                raise RunError(f"{spec.name(bus.run)} has messages already: give another name with --into")

    ask(place, question, role="topology", id=ID, patient=True)
    configuration.store(config, place.folder.path)


def _how_to_train(into: RunFolder, url: str | None, trainer: Address) -> Iterator[str]:
    config, place = into.path / configuration.FILE_NAME, into.path.parent
    if url is not None:
        yield f"train it with: headrace train {config} --dir {place} --server {url}"
        return
    yield f"run {into.name} is in {into.path}; train it in another terminal (--set changes the trainer):"
    yield f"  export HEADRACE_NATS_URL={trainer.url} HEADRACE_NATS_USER={trainer.user}"
    yield f"  export HEADRACE_NATS_PASSWORD=$(jq -r .passwords.trainer {into.nats / 'server.json'})"
    yield f"  headrace train {config} --dir {place}"
