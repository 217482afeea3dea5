"""The weights feed: always the newest announced version, verified before it is offered."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from bus import Bus, WeightsStore
from schemas import LEDGER, Weights, WeightsError

log = logging.getLogger("headrace.generator")


class Prefetched(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that lie verified on this machine."""

    weights: Weights
    folder: Path
    """Holds model.safetensors."""
    prefetch_s: float
    """Time that finding and verifying them took."""


class WeightsFeed:
    """Follows ``weights`` events and prefetches the newest while the engine goes on decoding.

    Versions that are overtaken before they were fetched are skipped.
    """

    def __init__(self, bus: Bus, store: WeightsStore) -> None:
        self._bus = bus
        self._store = store
        self._announced: Weights | None = None
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Take note of announcements until cancelled. Raises BusError when the ledger cannot be read."""
        last = await self._bus.last(LEDGER, Weights)
        # Something that is no announcement may lie after the last one.
        start = last.sequence if last is not None and isinstance(last.event, Weights) else 1
        async for logged in self._bus.read(LEDGER, kinds=(Weights,), start=start, follow=True):
            if isinstance(logged.event, Weights):
                self._hear(logged.event)

    def _hear(self, weights: Weights) -> None:
        if self._announced is None or weights.version > self._announced.version:
            self._announced = weights
            self._news.set()

    async def next(self) -> Prefetched:
        """The newest version that was announced since the last call, verified.

        Raises WeightsError when it is damaged or missing and no newer one is announced.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            weights = self._announced
            assert weights is not None
            began = time.monotonic()
            try:
                folder = await self._store.fetch(weights)
            except WeightsError:
                if not await self.overtaken(weights):
                    raise
                continue
            if self._announced is weights:
                return Prefetched(weights=weights, folder=folder, prefetch_s=time.monotonic() - began)
            log.info("weights %d were overtaken while they were fetched", weights.version)

    async def overtaken(self, weights: Weights) -> bool:
        """Whether a newer version is announced, which ``next`` will offer.

        Asks the ledger: older weights may be pruned before the announcement that allowed it has come here.
        """
        if self._announced is weights:
            last = await self._bus.last(LEDGER, Weights)
            if last is not None and isinstance(last.event, Weights):
                self._hear(last.event)
        return self._announced is not weights
