"""What the trainer writes: the ledger, under its fence; weights, durable before they are announced; dead letters."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from bus import Bus, BusThread, Delivery, Ledger, WeightsStore
from schemas import ROLLOUTS, TASKS, Closed, Dead, Event, Weights

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
        instance: str,
        dtype: Literal["float32", "bfloat16"],
    ) -> None:
        self._thread = thread
        self._ledger = ledger
        self._store = store
        self._run = run
        self._instance = instance
        self._dtype = dtype

    def append(self, event: Event) -> int:
        """Append to the ledger; returns its sequence. Raises Fenced when another writer owns it."""
        return self._thread.call(lambda _: self._ledger.append(event), WITHOUT_END)

    def close(self, closed: Closed) -> None:
        """Append that a group is left out for good. Raises Fenced."""
        self.append(closed)

    def weights(self, version: int, exported: Exported) -> Weights:
        """Store the weights under their digest, then announce them; then older ones may go (``weights.keep``).

        Raises WeightsError where the disk does not take them, Fenced where another writer owns the ledger.
        """
        stored = self._store.put(exported.payload, version=version, sha256=exported.sha256)
        weights = Weights(
            run=self._run,
            version=version,
            sha256=exported.sha256,
            size_bytes=len(exported.payload),
            location=stored.location,
            dtype=self._dtype,
        )
        self.append(weights)
        self._store.prune()
        return weights

    def fetch(self, weights: Weights) -> Path:
        """The folder that holds announced weights, verified. Raises WeightsError."""
        return self._store.fetch(weights)

    def purge(self, cut: Cut) -> None:
        """Remove from ROLLOUTS and TASKS what no step after the oldest kept checkpoint needs."""

        async def act(bus: Bus) -> None:
            await bus.purge(ROLLOUTS, before=cut.rollouts_before)
            await bus.purge(TASKS, before=cut.tasks_before)

        self._thread.call(act, WITHOUT_END)

    def bury(self, delivery: Delivery, reason: str) -> None:
        """Put a rollout that cannot be used into DEAD, whole."""
        dead = Dead(
            run=self._run,
            stream=ROLLOUTS.kind,
            sequence=delivery.sequence,
            subject=delivery.subject,
            headers=delivery.headers,
            payload=delivery.payload,
            reason=reason,
            by=f"trainer/{self._instance}",
        )
        self._thread.call(lambda bus: bus.publish(dead), WITHOUT_END)
