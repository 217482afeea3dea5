"""``guess``: several turns; find a secret digit. The answer to a wrong one is ``>`` (go higher) or ``<`` (go lower)."""

from __future__ import annotations

import random
from typing import Annotated

from msgspec import Meta

from schemas import Task

from .environment import Environment
from .outcome import Outcome
from .policy import Policy
from .scripted import Demonstrator

DIGITS = "0123456789"
MALFORMED = -0.2
LATER = 0.08
"""What each further turn takes off the reward of a win."""
SENSIBLE = 0.5
"""Share of a demonstration's guesses that heed the hints; the others are blind, to leave something to learn."""


class Guess(Environment):
    """Rollouts differ in length: a good guesser ends early."""

    def __init__(self, *, seed: int, turns: Annotated[int, Meta(ge=1, le=10)] = 4) -> None:
        """``turns``: guesses that one play allows."""
        super().__init__(seed=seed)
        self.turns = turns

    def task(self, index: int) -> Task:
        return Task(prompt="guess:", answer=self.rng(index).choice(DIGITS))

    async def play(self, task: Task, policy: Policy) -> Outcome:
        secret = int(task.answer)
        context = task.prompt
        for turn in range(1, self.turns + 1):
            reply = await policy.say(context, max_tokens=2)
            if reply.finish != "stop" or reply.text not in tuple(DIGITS):
                return _outcome(MALFORMED, turn, win=False)
            guess = int(reply.text)
            if guess == secret:
                return _outcome(1.0 - LATER * (turn - 1), turn, win=True)
            context = ">" if guess < secret else "<"
        return _outcome(0.0, self.turns, win=False)

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator:
        low, high, last = 0, len(DIGITS) - 1, -1

        def guess(context: str) -> str:
            nonlocal low, high, last
            if context == ">":
                low = max(low, last + 1)
            elif context == "<":
                high = min(high, last - 1)
            last = (low + high) // 2 if rng.random() < SENSIBLE else rng.randrange(len(DIGITS))
            return str(last)

        return guess


def _outcome(reward: float, turns: int, *, win: bool) -> Outcome:
    return Outcome(reward=reward, metrics={"win": float(win), "turns": float(turns)})
