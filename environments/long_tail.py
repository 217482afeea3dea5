"""``long_tail``: plays that wait before they speak, most of them briefly and a few of them long: for measuring.

The delay stands for what real environments wait for: a sandbox, a compiler, a server. It changes when a rollout ends,
never what it earns.
"""

from __future__ import annotations

import asyncio
import math
import random
from statistics import NormalDist
from typing import Annotated, Any

from msgspec import Meta

from schemas import EnvironmentFault, EnvironmentSettings, Task

from .environment import Environment
from .outcome import Outcome
from .policy import Policy
from .registry import load_environment
from .scripted import Demonstrator

P99 = NormalDist().inv_cdf(0.99)
"""Standard deviations from the median of a normal distribution to its 99th percentile: 2.33."""

REMEMBERED = 10_000
"""Tasks whose plays are counted; a generator plays far fewer at once."""


class LongTail(Environment):
    """Plays another environment after a delay, which is a pure function of seed, task and member."""

    def __init__(
        self,
        *,
        seed: int,
        kind: str = "reverse",
        args: dict[str, Any] | None = None,
        median_s: Annotated[float, Meta(gt=0, le=60)] = 0.1,
        tail: Annotated[float, Meta(ge=1, le=1000)] = 20.0,
        most_s: Annotated[float, Meta(gt=0)] = 60.0,
        delays_s: Annotated[list[Annotated[float, Meta(ge=0)]], Meta(min_length=1)] | None = None,
    ) -> None:
        """``kind`` and ``args``: the environment that is played.
        ``median_s``, ``tail``: of a log-normal distribution the median and how many times it the 99th percentile is.
        ``most_s``: no delay is longer. ``delays_s``: these instead, each as likely as another.
        """
        super().__init__(seed=seed)
        if kind == "long_tail":
            raise EnvironmentFault("environments.args.kind = 'long_tail' would play itself: name another environment")
        self.played = load_environment(EnvironmentSettings(name=kind, args=args or {}), seed=seed)
        self.median_s, self.sigma, self.most_s, self.delays_s = median_s, math.log(tail) / P99, most_s, delays_s
        self._plays: dict[int, int] = {}

    def task(self, index: int) -> Task:
        task = self.played.task(index)
        return Task(prompt=task.prompt, answer=task.answer, data={"index": index, "played": task.data})

    async def play(self, task: Task, policy: Policy) -> Outcome:
        index = task.data["index"]
        await asyncio.sleep(self.delay_s(index, self._nth(index)))
        played = Task(prompt=task.prompt, answer=task.answer, data=task.data["played"])
        return await self.played.play(played, policy)

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator | None:
        played = Task(prompt=task.prompt, answer=task.answer, data=task.data["played"])
        return self.played.demonstration(played, rng)

    def delay_s(self, index: int, play: int) -> float:
        """Seconds that play number ``play`` (0, 1, ...) of task ``index`` waits."""
        rng = random.Random(f"{self.seed}:long_tail:{index}:{play}")
        if self.delays_s is not None:
            return rng.choice(self.delays_s)
        return min(self.most_s, self.median_s * math.exp(self.sigma * rng.gauss(0.0, 1.0)))

    def _nth(self, index: int) -> int:
        """How often the task was played here before. One generator plays a group, in the order of its members."""
        play = self._plays.get(index, 0)
        self._plays[index] = play + 1
        if len(self._plays) > REMEMBERED:
            del self._plays[next(iter(self._plays))]
        return play
