"""What is played: the protocol that every environment implements. docs/environments.md shows how to write one."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from schemas import Task

from .outcome import Outcome
from .policy import Policy
from .scripted import Demonstrator


class Environment(ABC):
    """A source of tasks and the rules by which one is played.

    A subclass takes its arguments as keyword-only parameters of ``__init__`` beside ``seed``; annotate them,
    with bounds where there are any: the registry checks the configuration's values against the annotations.
    One instance plays many rollouts at once, so ``play`` keeps its state in local variables.
    """

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def task(self, index: int) -> Task:
        """Task ``index``: a pure function of seed and index."""

    @abstractmethod
    async def play(self, task: Task, policy: Policy) -> Outcome:
        """Play ``task`` once. What it raises becomes a rollout with an error."""

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator | None:
        """Someone who plays ``task`` for a supervised warm-up; None where the environment has nobody.

        It need not play well: reinforcement learning wants a policy that succeeds now and then.
        """
        return None

    def rng(self, index: int) -> random.Random:
        """Randomness of task ``index``: the same in every process, independent between indices."""
        return random.Random(f"{self.seed}:{type(self).__name__}:{index}")
