"""``reverse``: one turn; say a word of random letters backwards. ``rev:abcde=`` wants ``edcba``."""

from __future__ import annotations

import random
from typing import Annotated

from msgspec import Meta

from schemas import Task

from .environment import Environment
from .outcome import Outcome
from .policy import Policy
from .scripted import Demonstrator


class Reverse(Environment):
    """The reward is dense, so that a weak policy learns too: half of it is for each position, half for all of them."""

    def __init__(
        self,
        *,
        seed: int,
        length: Annotated[int, Meta(ge=1, le=64)] = 5,
        letters: Annotated[str, Meta(min_length=1, max_length=26, pattern="^[a-z]+$")] = "abcdefghij",
    ) -> None:
        """``length``: letters of a word. ``letters``: those that words are made of."""
        super().__init__(seed=seed)
        self.length = length
        self.letters = letters

    def task(self, index: int) -> Task:
        rng = self.rng(index)
        word = "".join(rng.choice(self.letters) for _ in range(self.length))
        return Task(prompt=f"rev:{word}=", answer=word[::-1])

    async def play(self, task: Task, policy: Policy) -> Outcome:
        # One token for the end, and one more, so that a word that goes on can be told from one that is just unfinished.
        reply = await policy.say(task.prompt, max_tokens=len(task.answer) + 2)
        right = sum(a == b for a, b in zip(reply.text, task.answer, strict=False)) / len(task.answer)
        whole = reply.finish == "stop" and len(reply.text) == len(task.answer)
        exact = float(whole and reply.text == task.answer)
        return Outcome(reward=0.5 * right * (1.0 if whole else 0.8) + 0.5 * exact, metrics={"exact": exact})

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator:
        return lambda _: task.answer
