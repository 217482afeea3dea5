"""The dispatcher: issues the next group as soon as admission allows, and remembers nothing but the log.

Its cursor is the last task in TASKS, appended with that stream's expected last sequence, so neither a restart
nor a second dispatcher skips or repeats a group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

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
            # Most of the work waits for the server for as long as it takes: ``stop`` must not have to.
            working = asyncio.create_task(self._work(telemetry))
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    working.result()
            finally:
                await _cancel([working, stopping])

    async def _work(self, telemetry: Telemetry) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._bus.require_whole(TASKS)
            await self._find_cursor()
            for spec in (LEDGER, CONTROL):
                tasks.append(await self._catch_up(spec))
            telemetry.ready()
            log.info("next group %d, %d open", self._admission.issued, self._admission.open)
            tasks.append(asyncio.create_task(self._issue_to_the_end()))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancel(tasks)

    async def _find_cursor(self) -> None:
        last = await self._bus.last(TASKS)
        self._last_sequence = last.sequence if last else (await self._bus.state(TASKS)).last_sequence
        if last is None or (isinstance(last.event, GroupTask) and last.event.group + 1 == last.sequence):
            # Group g is message g + 1; so too where nothing was issued yet, or retention has purged it all.
            self._admission.issued = self._last_sequence
        else:
            self._admission.issued = await self._count_tasks()

    async def _count_tasks(self) -> int:
        """Groups issued, where TASKS has messages that are none of ours: those that follow one another count."""
        purged = (await self._bus.state(TASKS)).first_sequence > 1
        issued = None if purged else 0
        async for logged in self._bus.read(TASKS):
            task = logged.event
            if not isinstance(task, GroupTask):
                log.warning("message %d of TASKS is no task: %s", logged.sequence, logged.invalid)
            elif task.group == issued or (issued is None and task.group < logged.sequence):
                issued = task.group + 1
            else:
                log.warning("message %d of TASKS, group %d, is none of ours", logged.sequence, task.group)
        return self._last_sequence if issued is None else issued

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

    async def _issue_to_the_end(self) -> None:
        while not self._admission.finished:
            self._changed.clear()
            while (least := self._admission.least_version()) is not None:
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


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
