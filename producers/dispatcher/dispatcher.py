"""The dispatcher: issues the next group as soon as admission allows, and remembers nothing but the log.

Its cursor is the last task in TASKS, appended with that stream's expected last sequence, so neither a restart
nor a second dispatcher skips or repeats a group.
"""

from __future__ import annotations

import asyncio
import logging

from bus import Bus, Telemetry, WrongSequence
from schemas import CONTROL, LEDGER, TASKS, Closed, Control, GroupTask, Step, StreamSpec

from .admission import Admission
from .tasks import TaskSource

log = logging.getLogger("headrace.dispatcher")


class Dispatcher:
    """Issues groups until the run's last step is committed or ``stop`` is set."""

    def __init__(self, bus: Bus, tasks: TaskSource, admission: Admission, *, metric_interval_s: float) -> None:
        """``metric_interval_s``: seconds between gauges, which are the heartbeat too."""
        self._bus = bus
        self._tasks = tasks
        self._admission = admission
        self._metric_interval_s = metric_interval_s
        self._changed = asyncio.Event()
        self._last_sequence = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Raises BusError when the log cannot be read or written, EnvironmentFault when a task cannot be made."""
        async with Telemetry(self._bus, self._gauges, interval_s=self._metric_interval_s) as telemetry:
            await self._find_cursor()
            followers = [await self._catch_up(LEDGER), await self._catch_up(CONTROL)]
            telemetry.ready()
            log.info("next group %d, %d open", self._admission.issued, self._admission.open)
            followers.append(asyncio.create_task(self._wake_on(stop)))
            issuing = asyncio.create_task(self._issue_until(stop))
            try:
                done, _ = await asyncio.wait([issuing, *followers[:2]], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await _cancel([issuing, *followers])

    async def _find_cursor(self) -> None:
        last = await self._bus.last(TASKS, GroupTask)
        self._last_sequence = (await self._bus.state(TASKS)).last_sequence
        if last is not None and isinstance(last.event, GroupTask):
            self._admission.issued = last.event.group + 1

    async def _catch_up(self, spec: StreamSpec) -> asyncio.Task[None]:
        """Apply all that ``spec`` holds, then go on in the background."""
        kinds = (Closed, Step) if spec is LEDGER else (Control,)
        start = 1
        async for logged in self._bus.read(spec, kinds=kinds):
            self._admission.apply(logged.event)
            start = logged.sequence + 1
        return asyncio.create_task(self._follow(spec, kinds, start))

    async def _follow(
        self, spec: StreamSpec, kinds: tuple[type[Closed] | type[Step] | type[Control], ...], start: int
    ) -> None:
        async for logged in self._bus.read(spec, kinds=kinds, start=start, follow=True):
            self._admission.apply(logged.event)
            self._changed.set()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _issue_until(self, stop: asyncio.Event) -> None:
        while not (stop.is_set() or self._admission.finished):
            self._changed.clear()
            while not stop.is_set() and (least := self._admission.least_version()) is not None:
                await self._issue(least)
            await self._changed.wait()

    async def _issue(self, least_version: int) -> None:
        task = self._tasks.group(self._admission.issued, least_version=least_version)
        try:
            published = await self._bus.publish(task, expected_last_sequence=self._last_sequence)
        except WrongSequence:
            # Ours, acknowledged late, or another dispatcher's: in both cases the log says what is next.
            log.warning("group %d is already in the log: reading the cursor again", task.group)
            await self._find_cursor()
            return
        self._last_sequence = published.sequence
        self._admission.issued = task.group + 1

    def _gauges(self) -> dict[str, float]:
        return {
            "groups_issued": self._admission.issued,
            "groups_open": self._admission.open,
            "groups_open_limit": self._admission.open_limit,
            "paused": float(self._admission.paused),
        }


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
