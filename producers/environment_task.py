"""What an environment makes of an index: a task, or a fault that names both."""

from __future__ import annotations

from environments import Environment
from schemas import EnvironmentFault, Task


def environment_task(name: str, environment: Environment, index: int) -> Task:
    """Task ``index`` of the environment that the configuration calls ``name``. Raises EnvironmentFault."""
    try:
        task = environment.task(index)
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(cannot(name, index, f"{type(error).__name__}: {error}")) from error
    if not isinstance(task, Task):
        raise EnvironmentFault(cannot(name, index, f"it returned {type(task).__name__}, not a Task"))
    if not isinstance(task.prompt, str):
        raise EnvironmentFault(cannot(name, index, f"its prompt is a {type(task.prompt).__name__}, not text"))
    return task


def cannot(name: str, index: int, why: str) -> str:
    """That the environment ``name`` has no usable task ``index``, and what to do."""
    return (
        f"environment {name!r} cannot make task {index}: {why}. Try it alone: headrace env try {name} --index {index}"
    )
