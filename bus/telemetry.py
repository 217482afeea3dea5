"""What a role instance tells about itself: started, ready, stopped, and gauges that are its heartbeat too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, cast

from schemas import HeadraceError, Lifecycle, Metric, Role

from .connection import Bus

log = logging.getLogger("headrace.bus")
LAST_WORDS_S = 1.5
"""Time that the last events have to be published: a server that is away must not hold up an end."""


class Telemetry:
    """Publishes a role's lifecycle, and its gauges every ``interval_s`` seconds, until it is left.

    Never raises and never blocks the role: what cannot be published is dropped with a log line.
    """

    def __init__(self, bus: Bus, gauges: Callable[[], dict[str, float]], *, interval_s: float) -> None:
        self._bus = bus
        self._role = cast(Role, bus.role)  # The roles that only read or command tell nothing.
        self._gauges = gauges
        self._interval_s = interval_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_order = asyncio.Lock()
        self.version: int | None = None
        """Weights version that the role has now, if it has one."""

    async def __aenter__(self) -> Self:
        self._say("started")
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        with contextlib.suppress(Exception):
            await self._announce_gauges()  # the last ones, for the summary
        self._say("stopped", note="" if error is None else f"{type(error).__name__}: {error}"[:500])
        _, unsaid = await asyncio.wait(self._tasks, timeout=LAST_WORDS_S)
        if unsaid:
            log.warning("%d lifecycle events were not published: the server gives no answer", len(unsaid))
        for task in unsaid:
            task.cancel()
        await asyncio.gather(*unsaid, return_exceptions=True)

    def ready(self) -> None:
        self._say("ready")

    def swapped(self, version: int, details: dict[str, float]) -> None:
        """New weights are in use; ``details`` are the times in seconds and counts of the swap."""
        self.version = version
        self._say("swapped", details=details)

    def _say(
        self,
        state: Literal["started", "ready", "swapped", "stopped"],
        *,
        details: dict[str, float] | None = None,
        note: str = "",
    ) -> None:
        event = Lifecycle(
            run=self._bus.run,
            role=self._role,
            id=self._bus.id,
            state=state,
            pid=os.getpid(),
            host=socket.gethostname(),
            version=self.version,
            details=details or {},
            note=note,
        )
        task = asyncio.create_task(self._publish(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, event: Lifecycle) -> None:
        try:
            async with self._in_order:
                await self._bus.publish(event)
        except HeadraceError as error:
            log.warning("lifecycle event %r was not published: %s", event.state, error)

    async def _beat(self) -> None:
        while True:
            try:
                await self._announce_gauges()
            except Exception as error:  # A heartbeat that ends for its gauges would make a live role look dead.
                log.warning("gauges were not published: %s", error)
            await asyncio.sleep(self._interval_s)

    async def _announce_gauges(self) -> None:
        # A copy first: another thread may be adding to the original.
        gauges = {name: float(value) for name, value in dict(self._gauges()).items()}
        await self._bus.announce(
            Metric(
                run=self._bus.run,
                role=self._role,
                id=self._bus.id,
                version=self.version,
                gauges=gauges,
                note=self._bus.holdup,
            )
        )
