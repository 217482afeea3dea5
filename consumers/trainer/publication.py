"""What the trainer writes: the ledger, under its fence; weights, durable before they are announced; dead letters."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from bus import Bus, BusThread, Delta, Ledger, Logged, Stored, WeightsStore, bury, make_delta
from schemas import ROLLOUTS, TASKS, TELEMETRY, WEIGHTS_MISSING, Closed, Event, Fenced, Metric, Weights, WeightsError

from .fence import in_words
from .logprob_gap import Dtype
from .retention import Cut

log = logging.getLogger("headrace.trainer")
T = TypeVar("T")

ITEM_BYTES: dict[str, Literal[2, 4]] = {"float32": 4, "bfloat16": 2}
WITHOUT_END = None
"""What is written waits out a server that is away and a full stream, however long: the bus says so each 10 s."""


class Exported(msgspec.Struct, frozen=True):
    """Parameters in the form in which they are published, and their identity."""

    payload: bytes
    """A safetensors file."""
    sha256: str
    """Of the payload, in hexadecimal."""

    @classmethod
    def of(cls, payload: bytes) -> Exported:
        """``payload`` with its digest."""
        return cls(payload, hashlib.sha256(payload).hexdigest())


class Publication:
    """The trainer's side of the bus. Every call returns when what it wrote is durable."""

    def __init__(
        self,
        thread: BusThread,
        ledger: Ledger,
        store: WeightsStore,
        *,
        run: str,
        dtype: Dtype,
        whole_every: int = 1,
    ) -> None:
        """``whole_every``: divides the versions that are stored whole; of others what changed is, if that is less."""
        self._thread = thread
        self._ledger = ledger
        self._store = store
        self._run = run
        self.dtype = dtype
        self._whole_every = whole_every
        self._writing = asyncio.Lock()
        self._newest: tuple[Weights, Exported] | None = None
        """What was announced, or mended, last."""
        self._since_whole = 0
        """Bytes of the deltas since the last version that was stored whole."""

    def open(self) -> None:
        """Take the ledger's end as ours to continue; read it up to there, then append a term."""
        self._thread.call(lambda _: self._ledger.open(), WITHOUT_END)

    def append(self, event: Event) -> int:
        """Append to the ledger; returns its sequence. Raises Fenced, naming the other, when another writer owns it."""

        async def act(bus: Bus) -> int:
            try:
                return await self._ledger.append(event)
            except Fenced as error:
                raise await in_words(bus, event, error) from error

        return self._thread.call(act, WITHOUT_END)

    def close(self, closed: Closed) -> None:
        """Append that a group is left out for good. Raises Fenced."""
        self.append(closed)

    def weights(self, version: int, exported: Exported) -> Weights:
        """Store the weights under their digest, then announce them; then older ones may go (``weights.keep``).

        Raises WeightsError where the store does not take them, Fenced where another writer owns the ledger.
        """
        delta = self._delta_to(exported)
        stored = self._put(version, exported) if delta is None else self._put_delta(version, delta)
        weights = Weights(
            run=self._run,
            version=version,
            sha256=exported.sha256,
            size_bytes=len(exported.payload),
            location=stored.location,
            dtype=self.dtype,
            base=None if delta is None or self._newest is None else self._newest[0].version,
            delta_bytes=None if delta is None else len(delta.payload),
        )
        self.append(weights)
        self._newest = (weights, exported)
        self._since_whole = 0 if delta is None else self._since_whole + len(delta.payload)
        # Who has the version before has this one by now. Who has none is not to take more than half as much again.
        if delta and (version % self._whole_every == 0 or self._since_whole > Delta.MOST * weights.size_bytes):
            self.mend(weights, exported)
        self._write(self._store.prune)
        return weights

    def _delta_to(self, exported: Exported) -> Delta | None:
        """What makes ``exported`` of the newest weights, where such are asked for and worth their while."""
        if self._whole_every == 1 or self._newest is None:
            return None
        _, base = self._newest
        return make_delta(
            base.payload,
            exported.payload,
            base_sha256=base.sha256,
            sha256=exported.sha256,
            item_bytes=ITEM_BYTES[self.dtype],
        )

    def _put_delta(self, version: int, delta: Delta) -> Stored:
        return self._write(partial(self._store.put_delta, delta, version=version))

    def _put(self, version: int, exported: Exported) -> Stored:
        return self._write(partial(self._store.put, exported.payload, version=version, sha256=exported.sha256))

    def _write(self, act: Callable[[], Awaitable[T]]) -> T:
        """Change the store, which takes one change after the other."""

        async def alone(_: Bus) -> T:
            async with self._writing:
                return await act()

        return self._thread.call(alone, WITHOUT_END)

    async def mend_on_demand(self, bus: Bus) -> None:
        """Put the newest weights again, as a whole file, whenever a generator says that it cannot make them of deltas.

        Goes on until it is cancelled, also where the store refuses them. ``bus``: that of the thread, in whose loop
        this runs.
        """
        start = (await bus.state(TELEMETRY)).last_sequence + 1
        async for logged in bus.read(TELEMETRY, kinds=(Metric,), start=start, follow=True):
            if not isinstance(logged.event, Metric) or self._newest is None:
                continue
            weights, exported = self._newest
            if logged.event.gauges.get(WEIGHTS_MISSING) == weights.version:
                log.warning("generator %s cannot make weights %d: they are put whole", logged.event.id, weights.version)
                try:
                    async with self._writing:
                        await self._store.put(exported.payload, version=weights.version, sha256=exported.sha256)
                except WeightsError as error:  # The generator goes on asking, so it is tried again.
                    log.error("weights %d were not put whole: %s", weights.version, error)

    def fetch(self, weights: Weights) -> Path:
        """The folder that holds announced weights, verified. Raises WeightsError."""
        return self._thread.call(lambda _: self._store.fetch(weights), WITHOUT_END)

    def mend(self, weights: Weights, exported: Exported) -> None:
        """Have the store hold announced weights, as a whole file: generators wait for them.

        Who cannot make them of what they have, because a delta or its base is damaged, then takes that file.
        ``exported``: the same weights. Raises WeightsError where the store does not take them.
        """
        assert exported.sha256 == weights.sha256, f"other weights than were announced as {weights.version}"
        self._put(weights.version, exported)
        self._newest, self._since_whole = (weights, exported), 0

    def purge(self, cut: Cut) -> None:
        """Remove from ROLLOUTS and TASKS what no step after the oldest kept checkpoint needs."""

        async def act(bus: Bus) -> None:
            await bus.purge(ROLLOUTS, before=cut.rollouts_before)
            # Purging past a stream's end would move its end, and that says how many groups were issued.
            issued = (await bus.state(TASKS)).last_sequence
            await bus.purge(TASKS, before=min(cut.tasks_before, issued))

        self._thread.call(act, WITHOUT_END)

    def issued_groups(self) -> int:
        """Groups that were ever issued: each is a message of TASKS, and group g is the message g + 1."""
        return self._thread.call(lambda bus: bus.state(TASKS), WITHOUT_END).last_sequence

    def rollout_at(self, sequence: int) -> Logged | None:
        """The message at ``sequence`` of ROLLOUTS; None where it is gone."""

        async def act(bus: Bus) -> Logged | None:
            async for logged in bus.read(ROLLOUTS, start=sequence):
                return logged if logged.sequence == sequence else None
            return None

        return self._thread.call(act, WITHOUT_END)

    def bury(self, logged: Logged, reason: str) -> None:
        """Put a message of ROLLOUTS that cannot be used into DEAD, whole."""
        self._thread.call(lambda bus: bury(bus, logged, ROLLOUTS, reason), WITHOUT_END)
