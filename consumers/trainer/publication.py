"""What the trainer writes: the ledger, under its fence; weights, durable before they are announced; dead letters."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from bus import Bus, BusThread, Ledger, Logged, Stored, WeightsStore, bury
from schemas import ROLLOUTS, TASKS, Closed, Event, Fenced, Weights

from .fence import in_words
from .retention import Cut

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
        dtype: Literal["float32", "bfloat16"],
    ) -> None:
        self._thread = thread
        self._ledger = ledger
        self._store = store
        self._run = run
        self.dtype = dtype

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
        stored = self._put(version, exported)
        weights = Weights(
            run=self._run,
            version=version,
            sha256=exported.sha256,
            size_bytes=len(exported.payload),
            location=stored.location,
            dtype=self.dtype,
        )
        self.append(weights)
        self._thread.call(lambda _: self._store.prune(), WITHOUT_END)
        return weights

    def _put(self, version: int, exported: Exported) -> Stored:
        put = partial(self._store.put, exported.payload, version=version, sha256=exported.sha256)
        return self._thread.call(lambda _: put(), WITHOUT_END)

    def fetch(self, weights: Weights) -> Path:
        """The folder that holds announced weights, verified. Raises WeightsError."""
        return self._thread.call(lambda _: self._store.fetch(weights), WITHOUT_END)

    def mend(self, weights: Weights, exported: Exported) -> None:
        """Have the store hold announced weights whole: generators wait for them.

        ``exported``: the same weights. Raises WeightsError where the store does not take them.
        """
        assert exported.sha256 == weights.sha256, f"other weights than were announced as {weights.version}"
        self._put(weights.version, exported)

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
