"""Task i of a run: a pure function of the run's seed and i."""

from __future__ import annotations

import random

from environments import Environment, load_environment
from schemas import EnvironmentFault, EnvironmentSettings, EventInvalid, GroupTask, Task, encode


class TaskSource:
    """Chooses the environment of each group by weight, and asks it for its task.

    Raises EnvironmentFault when an environment cannot be built or cannot make a task.
    """

    def __init__(self, environments: list[EnvironmentSettings], *, run: str, seed: int, group_size: int) -> None:
        self._run = run
        self._seed = seed
        self._group_size = group_size
        self._weights = [settings.weight for settings in environments]
        self._environments: list[tuple[str, Environment]] = [
            (settings.name, load_environment(settings, seed=seed)) for settings in environments
        ]

    def group(self, number: int, *, least_version: int) -> GroupTask:
        """The task event of group ``number``. Raises EnvironmentFault."""
        choice = random.Random(f"{self._seed}:{number}")
        ((name, environment),) = choice.choices(self._environments, weights=self._weights)
        event = GroupTask(
            run=self._run,
            group=number,
            env=name,
            index=number,
            task=self._task(name, environment, number),
            size=self._group_size,
            least_version=least_version,
        )
        try:
            encode(event)
        except EventInvalid as error:
            raise EnvironmentFault(_cannot(name, number, f"it cannot be sent: {error}")) from error
        return event

    @staticmethod
    def _task(name: str, environment: Environment, index: int) -> Task:
        try:
            task = environment.task(index)
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(_cannot(name, index, f"{type(error).__name__}: {error}")) from error
        if not isinstance(task, Task):
            raise EnvironmentFault(_cannot(name, index, f"it returned {type(task).__name__}, not a Task"))
        return task


def _cannot(name: str, index: int, why: str) -> str:
    return (
        f"environment {name!r} cannot make task {index}: {why}. Try it alone: headrace env try {name} --index {index}"
    )
