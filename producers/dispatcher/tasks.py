"""Task i of a run: a pure function of the run's seed and i."""

from __future__ import annotations

import random
from collections.abc import Mapping

from environments import Environment, load_environment
from producers.environment_task import cannot, environment_task
from producers.held_out import Drawn, training_task
from schemas import EnvironmentFault, EnvironmentSettings, EventInvalid, GroupTask, encode


class TaskSource:
    """Chooses the environment of each group by weight, and asks it for its task.

    Raises EnvironmentFault when an environment cannot be built or cannot make a task.
    """

    def __init__(
        self,
        environments: list[EnvironmentSettings],
        *,
        run: str,
        seed: int,
        group_size: int,
        held_out: Mapping[str, float] | None = None,
    ) -> None:
        """``held_out``: environment to the share of its prompts that is never issued (``evaluation.held_out``)."""
        self._run = run
        self._seed = seed
        self._group_size = group_size
        self._held_out = held_out or {}
        self._weights = [settings.weight for settings in environments]
        self._environments: list[tuple[str, Environment]] = [
            (settings.name, load_environment(settings, seed=seed)) for settings in environments
        ]

    def group(self, number: int, *, least_version: int) -> GroupTask:
        """The task event of group ``number``. Raises EnvironmentFault."""
        choice = random.Random(f"{self._seed}:{number}")
        ((name, environment),) = choice.choices(self._environments, weights=self._weights)
        drawn = self._draw(name, environment, number)
        event = GroupTask(
            run=self._run,
            group=number,
            env=name,
            index=drawn.index,
            task=drawn.task,
            size=self._group_size,
            least_version=least_version,
        )
        try:
            encode(event)
        except EventInvalid as error:
            raise EnvironmentFault(cannot(name, drawn.index, f"it cannot be sent: {error}")) from error
        return event

    def _draw(self, name: str, environment: Environment, number: int) -> Drawn:
        if name not in self._held_out:
            return Drawn(number, environment_task(name, environment, number))
        return training_task(name, environment, number, self._held_out[name])
