"""What the trainer writes: the ledger, under its fence; weights, durable before they are announced; dead letters."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from bus import BusThread, Delivery, Ledger, WeightsStore
from schemas import ROLLOUTS, Closed, Dead, Event, Weights

APPEND_TIMEOUT_S = 600.0
"""An append waits for a server that is away; longer than this is reported as a failure of the trainer."""


class Exported(msgspec.Struct, frozen=True):
    """Parameters in the form in which they are published, and their identity."""

    payload: bytes
    sha256: str

    @classmethod
    def of(cls, payload: bytes) -> Exported:
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
        return self._thread.call(lambda _: self._ledger.append(event), APPEND_TIMEOUT_S)

    def close(self, closed: Closed) -> None:
        self.append(closed)

    def weights(self, version: int, exported: Exported) -> Weights:
        """Store the weights under their digest, then announce them."""
        stored = self._store.put(exported.payload, version=version)
        weights = Weights(
            run=self._run,
            version=version,
            sha256=exported.sha256,
            size_bytes=len(exported.payload),
            location=stored.location,
            dtype=self._dtype,
        )
        self.append(weights)
        return weights

    def fetch(self, weights: Weights) -> Path:
        """The folder that holds announced weights, verified. Raises WeightsError."""
        return self._store.fetch(weights)

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
        self._thread.call(lambda bus: bus.publish(dead), APPEND_TIMEOUT_S)
