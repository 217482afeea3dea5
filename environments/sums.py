"""``sums``: one turn; complete a list of sums. For a language model that has seen such lists, as SmolLM2 has."""

from __future__ import annotations

import random
from typing import Annotated

from msgspec import Meta

from schemas import Task

from .environment import Environment
from .outcome import Outcome
from .policy import Policy
from .scripted import Demonstrator

EXAMPLES = "1+2=3\n4+4=8\n"
"""Two shots: they show that a bare number and a newline are wanted."""


class Sums(Environment):
    """Two numbers of 0 to ``largest`` are added; the reward is 1 for the right sum and 0 for anything else."""

    def __init__(self, *, seed: int, largest: Annotated[int, Meta(ge=1, le=99)] = 9) -> None:
        """``largest``: greatest number to add; sums of two digits and less fit into a reply of four tokens."""
        super().__init__(seed=seed)
        self.largest = largest

    def task(self, index: int) -> Task:
        rng = self.rng(index)
        a, b = rng.randint(0, self.largest), rng.randint(0, self.largest)
        return Task(prompt=f"{EXAMPLES}{a}+{b}=", answer=str(a + b))

    async def play(self, task: Task, policy: Policy) -> Outcome:
        reply = await policy.say(task.prompt, max_tokens=4, stop="\n")
        exact = float(reply.finish == "stop" and reply.text == task.answer)
        return Outcome(reward=exact, metrics={"exact": exact})

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator:
        return lambda _: task.answer
