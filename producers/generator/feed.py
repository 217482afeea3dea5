"""The weights feed: the newest announced version, or one that is due, verified before it is offered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bus import Bus, Patience, WeightsStore
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

    Versions that are overtaken before they were fetched are skipped, but for those that are due.
    """

    def __init__(self, bus: Bus, store: WeightsStore, due: Callable[[int], bool] | None = None) -> None:
        """``due``: versions that are offered in their order, however many newer ones there are."""
        self._bus = bus
        self._store = store
        self._is_due = due
        self._announced: Weights | None = None
        self._due: list[Weights] = []
        self._passed = -1
        """Version that was offered, or passed over, last: older ones are never offered."""
        self._news = asyncio.Event()
        self.missing: int | None = None
        """Version that is announced as a delta and cannot be made here, while that is so."""

    async def follow(self) -> None:
        """Take note of announcements until cancelled. Raises BusError when the ledger cannot be read."""
        start = await self._catch_up()
        self._news.set()
        async for logged in self._bus.read(LEDGER, kinds=(Weights,), start=start, follow=True):
            if isinstance(logged.event, Weights):
                self._hear(logged.event)

    async def _catch_up(self) -> int:
        """Take note of what is announced already, at once; returns the sequence from which to follow."""
        if self._is_due is None:
            last = await self._bus.last(LEDGER, Weights)
            # Something that is no announcement may lie after the last one.
            return last.sequence if last is not None and isinstance(last.event, Weights) else 1
        found = [logged async for logged in self._bus.read(LEDGER, kinds=(Weights,))]
        for logged in found:
            if isinstance(logged.event, Weights):
                self._hear(logged.event)
        return found[-1].sequence + 1 if found else 1

    def _hear(self, weights: Weights) -> None:
        if self._announced is None or weights.version > self._announced.version:
            self._announced = weights
            if self._is_due is not None and self._is_due(weights.version):
                self._due.append(weights)
            self._news.set()

    async def next(self) -> Prefetched:
        """The oldest version that is due, or else the newest that was announced since the last call; verified.

        Where it cannot be made of deltas, the trainer is waited for, with a log line each 10 s: ``missing`` asks it for
        the whole file. Raises WeightsError when whole weights are damaged or missing and no newer ones are announced.
        """
        patience = Patience("waiting for whole weights")
        while True:
            while (weights := self._wanted()) is None:
                self._news.clear()
                await self._news.wait()
            began = time.monotonic()
            try:
                folder = await self._store.fetch(weights)
            except WeightsError as error:
                if await self.overtaken(weights):
                    log.warning("weights %d are passed over for newer ones: %s", weights.version, error)
                    self._passed = weights.version
                elif weights.base is None:
                    raise
                else:
                    self.missing = weights.version
                    await patience.pause(str(error))
                continue
            self.missing = None
            patience.rewarded()
            if self._wanted() is weights:
                self._passed = weights.version
                return Prefetched(weights=weights, folder=folder, prefetch_s=time.monotonic() - began)
            log.info("weights %d were overtaken while they were fetched", weights.version)

    def _wanted(self) -> Weights | None:
        self._due = [weights for weights in self._due if weights.version > self._passed]
        if self._due:
            return self._due[0]
        newest = self._announced
        return newest if newest is not None and newest.version > self._passed else None

    async def overtaken(self, weights: Weights) -> bool:
        """Whether a newer version is announced, which ``next`` will offer.

        Asks the ledger: older weights may be pruned before the announcement that allowed it has come here.
        """
        if self._announced is weights:
            last = await self._bus.last(LEDGER, Weights)
            if last is not None and isinstance(last.event, Weights):
                self._hear(last.event)
        return self._announced is not weights
