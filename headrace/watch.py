"""Watching a run: its events folded into a RunView, once or as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bus import Bus, Logged
from schemas import CONTROL, DEAD, EVALUATIONS, LEDGER, TELEMETRY, StreamSpec

from .inquiry import those_made
from .view import HEARTBEAT_S, RunView

WATCHED: tuple[StreamSpec, ...] = (LEDGER, TELEMETRY, CONTROL, DEAD, EVALUATIONS)


class Watch:
    """Reads each stream from where it last stopped reading, so that no event is counted twice."""

    def __init__(self, bus: Bus, interval_s: float = HEARTBEAT_S) -> None:
        """``interval_s``: see RunView."""
        self.view = RunView(bus.run, interval_s)
        self._bus = bus
        self._next = {spec.kind: 1 for spec in WATCHED}

    async def catch_up(self) -> None:
        """Take in all that the log has now."""
        for spec in await those_made(self._bus, WATCHED):
            async for logged in self._bus.read(spec, start=self._next[spec.kind]):
                self._take(spec, logged)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[asyncio.Event]:
        """Keep the view up to date within the block; the event is set at each change.

        What ends the reading of a stream, a gap in it for example, is raised into the block, and out of it.
        """
        changed = asyncio.Event()

        async def follow(spec: StreamSpec) -> None:
            async for logged in self._bus.read(spec, start=self._next[spec.kind], follow=True):
                self._take(spec, logged)
                changed.set()

        try:
            specs = await those_made(self._bus, WATCHED)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(follow(spec)) for spec in specs]
                yield changed
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _take(self, spec: StreamSpec, logged: Logged) -> None:
        self.view.apply(logged)
        self._next[spec.kind] = logged.sequence + 1
