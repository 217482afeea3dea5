"""Evaluation: a due version's held-out tasks are played while that version is held in the engine.

What is due and what is still missing is derived from the log, so that a generator that was killed goes on where it was:
a play that was published is not played again, and one that was published without our knowing is a duplicate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from bus import Bus
from environments import Environment
from producers.held_out import Drawn, evaluation_tasks
from schemas import EVALUATIONS, Evaluated, EvaluationSettings

from .gate import Gate
from .play import EvaluationPlay, Player

log = logging.getLogger("headrace.generator")


class Evaluator:
    """Plays the evaluation of each due version. Call ``catch_up`` first."""

    def __init__(
        self,
        bus: Bus,
        gate: Gate,
        player: Player,
        environments: dict[str, Environment],
        settings: EvaluationSettings,
        *,
        steps: int,
        concurrency: int,
    ) -> None:
        """``environments``: those that are evaluated, by name, with the evaluation's seed; ``player`` plays them.

        ``steps``: the run's last version. ``concurrency``: the generator's, of which evaluation takes its share.
        """
        self._bus = bus
        self._gate = gate
        self._player = player
        self._environments = environments
        self._settings = settings
        self._steps = steps
        self._at_once = max(1, int(settings.share * concurrency))
        self._tasks: dict[str, list[Drawn]] = {}
        self._played: set[tuple[int, str, int, int]] = set()
        self._left = 0

    async def catch_up(self) -> None:
        """Make the tasks, and see in the log what was played of them.

        Raises EnvironmentFault where an environment has too few, BusError where the log cannot be read.
        """
        settings = self._settings
        for name, environment in self._environments.items():
            self._tasks[name] = await asyncio.to_thread(
                evaluation_tasks, name, environment, settings.tasks, settings.held_out
            )
        async for logged in self._bus.read(EVALUATIONS, kinds=(Evaluated,)):
            if isinstance(event := logged.event, Evaluated):
                self._played.add((event.version, event.env, event.task, event.sample))

    def due(self, version: int) -> bool:
        """Whether ``version`` is to be evaluated, and something of that is missing in the log."""
        if not self._settings.due(version, last=self._steps):
            return False
        return next(self._missing(version), None) is not None

    @property
    def in_play(self) -> int:
        """Plays under way."""
        return min(self._left, self._at_once)

    @property
    def left(self) -> int:
        """Plays that the evaluation under way still needs."""
        return self._left

    async def evaluate(self) -> None:
        """Play what is missing of the version in use, if it is due; no swap before all of it is published.

        Raises EngineError when the engine is unusable, BusError or EventInvalid when a play cannot be published.
        """
        async with self._gate.held() as version:
            plays = list(self._missing(version)) if self.due(version) else []
            if not plays:
                return
            log.info("evaluation of weights %d: %d plays; no swap until they are published", version, len(plays))
            self._left = len(plays)
            queue = iter(plays)
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(self.in_play):
                        workers.create_task(self._work(queue))
            finally:
                self._left = 0
        missing = len(list(self._missing(version)))
        if missing:  # A TaskGroup takes a worker that was cancelled from within for ended.
            log.error("evaluation of weights %d lacks %d plays: an environment has cancelled them", version, missing)
        else:
            log.info("evaluation of weights %d is complete", version)

    async def _work(self, queue: Iterator[EvaluationPlay]) -> None:
        for play in queue:
            evaluated = await self._player.evaluate(
                play, run=self._bus.run, generator=self._bus.id, temperature=self._settings.temperature
            )
            await self._bus.publish(evaluated)
            self._played.add((play.version, play.env, play.task, play.sample))
            self._left -= 1

    def _missing(self, version: int) -> Iterator[EvaluationPlay]:
        """All tasks once, then all once more: what is there when a run ends early is as even as can be."""
        for sample in range(self._settings.samples):
            for env, tasks in self._tasks.items():
                for task, drawn in enumerate(tasks):
                    if (version, env, task, sample) not in self._played:
                        yield EvaluationPlay(version, env, task, sample, drawn)
