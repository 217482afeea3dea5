"""Watching a run: its events folded into a RunView, once or as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bus import Bus, Logged
from schemas import CONTROL, DEAD, LEDGER, TELEMETRY, StreamSpec

from .view import RunView

WATCHED: tuple[StreamSpec, ...] = (LEDGER, TELEMETRY, CONTROL, DEAD)


class Watch:
    """Reads each stream from where it last stopped reading, so that no event is counted twice."""

    def __init__(self, bus: Bus) -> None:
        self.view = RunView(bus.run)
        self._bus = bus
        self._next = {spec.kind: 1 for spec in WATCHED}

    async def catch_up(self) -> None:
        """Take in all that the log has now."""
        for spec in WATCHED:
            async for logged in self._bus.read(spec, start=self._next[spec.kind]):
                self._take(spec, logged)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[asyncio.Event]:
        """Keep the view up to date within the block; the event is set at each change."""
        changed = asyncio.Event()

        async def follow(spec: StreamSpec) -> None:
            async for logged in self._bus.read(spec, start=self._next[spec.kind], follow=True):
                self._take(spec, logged)
                changed.set()

        tasks = [asyncio.create_task(follow(spec)) for spec in WATCHED]
        try:
            yield changed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, spec: StreamSpec, logged: Logged) -> None:
        self.view.apply(logged)
        self._next[spec.kind] = logged.sequence + 1
