"""``larger``: one turn; say the larger of two numbers. For a language model that half knows how, as SmolLM2 does."""

from __future__ import annotations

import random
from typing import Annotated

from msgspec import Meta

from schemas import Task

from .environment import Environment
from .outcome import Outcome
from .policy import Policy
from .scripted import Demonstrator

EXAMPLES = "larger of 3 8: 8\nlarger of 52 17: 52\n"
"""Two shots: they show that a bare number and a newline are wanted, and that either place may win."""


class Larger(Environment):
    """Two different numbers from 0 to ``largest``; the reward is 1 for the larger one and 0 for anything else."""

    def __init__(self, *, seed: int, largest: Annotated[int, Meta(ge=9, le=999)] = 99) -> None:
        """``largest``: greatest number; up to 99 there are 9,900 tasks."""
        super().__init__(seed=seed)
        self.largest = largest

    def task(self, index: int) -> Task:
        a, b = self.rng(index).sample(range(self.largest + 1), 2)
        return Task(prompt=f"{EXAMPLES}larger of {a} {b}:", answer=str(max(a, b)))

    async def play(self, task: Task, policy: Policy) -> Outcome:
        # A space, three digits and the newline, each a token of its own at worst.
        reply = await policy.say(task.prompt, max_tokens=5, stop="\n")
        exact = float(reply.finish == "stop" and reply.text.strip(" ") == task.answer)
        return Outcome(reward=exact, metrics={"exact": exact})

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator:
        return lambda _: f" {task.answer}"
