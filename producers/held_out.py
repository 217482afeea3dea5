"""Held-out tasks: which prompts are never trained, and how training and evaluation each draw around that.

A prompt's sha256 decides, so the two are disjoint by content whatever the index, and an environment needs to know
nothing of it. A task stays a pure function of the environment's seed and a number: where the task of the number's own
index is not of the wanted kind, the indices STRIDE further on are tried in turn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import msgspec

from environments import Environment
from schemas import EnvironmentFault, Task

from .environment_task import environment_task

STRIDE = 2**40 + 15
"""A prime, so that an environment that takes its index modulo a number of rows is walked through whole."""
TRIES = 64
"""Tries for each wanted one among tasks that are drawn at random: missing it by chance has a probability of e^-64."""


class Drawn(msgspec.Struct, frozen=True):
    """A task, and the index at which its environment has it."""

    index: int
    task: Task


def is_held_out(prompt: str, share: float) -> bool:
    """Whether ``prompt`` belongs to the ``share`` of all prompts that is never trained."""
    return int(hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:8], 16) < share * 2**32


def training_task(name: str, environment: Environment, number: int, share: float) -> Drawn:
    """Task ``number`` of those that are trained, where ``share`` of the prompts is held out.

    ``name``: of the environment, in the configuration. Raises EnvironmentFault where nearly all it makes is held out.
    """
    for drawn in _candidates(name, environment, number, tries=math.ceil(TRIES / (1 - share))):
        if not is_held_out(drawn.task.prompt, share):
            return drawn
    raise EnvironmentFault(
        f"environment {name!r} has no task for number {number} that may be trained: it makes too few different prompts "
        f"for evaluation.held_out {share:g}: lower that, or leave it out of evaluation.environments"
    )


def evaluation_tasks(name: str, environment: Environment, count: int, share: float) -> list[Drawn]:
    """The first ``count`` held-out tasks; no two have the same prompt.

    ``name``: as above. Raises EnvironmentFault where there are not so many.
    """
    found: list[Drawn] = []
    prompts: set[str] = set()
    for number in range(count):
        for drawn in _candidates(name, environment, number, tries=math.ceil(TRIES / share)):
            prompt = drawn.task.prompt
            if prompt not in prompts and is_held_out(prompt, share):
                found.append(drawn)
                prompts.add(prompt)
                break
        else:
            raise EnvironmentFault(
                f"environment {name!r} has {number} different held-out prompts, evaluation.tasks asks for {count}: "
                f"lower that, raise evaluation.held_out {share:g}, or leave it out of evaluation.environments"
            )
    return found


def _candidates(name: str, environment: Environment, number: int, *, tries: int) -> Iterator[Drawn]:
    for attempt in range(tries):
        index = number + attempt * STRIDE
        yield Drawn(index, environment_task(name, environment, index))
