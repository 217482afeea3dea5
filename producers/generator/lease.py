"""A lease on a group: kept alive while the group is played, acknowledged when all of it is published."""

from __future__ import annotations

import asyncio
import logging
import time
from types import TracebackType
from typing import Self

from bus import Delivery
from schemas import BusError

log = logging.getLogger("headrace.generator")
BEATS_PER_LEASE = 3
"""Renewals in the length of a lease, so that two may be lost before it ends."""


class Lease:
    """Renews ``delivery`` while the block runs.

    Ends acknowledged if ``done`` was called: then the group is whole in the log, whoever has the lease now. Otherwise
    it is given back, if it is still ours: a late answer about a lease that has ended would be accepted while another
    generator holds it. One that has ended is not renewed for the same reason.
    """

    def __init__(self, delivery: Delivery, *, lease_s: float) -> None:
        """``lease_s``: after so many seconds without a renewal the server gives it to another."""
        self._delivery = delivery
        self._lease_s = lease_s
        self._renewed_at = time.monotonic()
        self._done = False

    @property
    def held(self) -> bool:
        """Whether it was renewed within its length, so that nobody else can have it."""
        return time.monotonic() - self._renewed_at < self._lease_s

    def done(self) -> None:
        """Every member's publication is acknowledged."""
        self._done = True

    async def __aenter__(self) -> Self:
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        if not (self._done or self.held):
            log.warning(
                "lease on task %d ended before the group did: another generator plays it", self._delivery.sequence
            )
            return
        try:
            await (self._delivery.ack() if self._done else self._delivery.nak())
        except BusError as fault:
            # The lease then ends by itself, and playing twice is legal.
            log.warning(
                "task %d was not %s: %s", self._delivery.sequence, "acked" if self._done else "given back", fault
            )

    async def _beat(self) -> None:
        pause_s = self._lease_s / BEATS_PER_LEASE
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(pause_s)
            late_s = time.monotonic() - slept_at - pause_s
            if late_s > pause_s:
                log.warning(
                    "lease on task %d could not be renewed for %.0f s: this process was stopped, or an environment "
                    "blocks its event loop (docs/environments.md, Playing)", self._delivery.sequence, late_s,
                )  # fmt: skip
            if not self.held:
                return
            asked_at = time.monotonic()
            try:
                await self._delivery.in_progress()
            except BusError as error:
                log.warning("lease on task %d was not renewed: %s", self._delivery.sequence, error)
                continue
            if self.held:  # An answer that is later than the lease says nothing: it may have ended before.
                self._renewed_at = asked_at
