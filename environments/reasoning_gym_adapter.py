"""``reasoning_gym``: any task of the package reasoning-gym, with its own scorer and curriculum; one turn each."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import re
from typing import Annotated, Any

from msgspec import Meta

from schemas import EnvironmentFault, Task

from .environment import Environment
from .outcome import Outcome
from .policy import Policy
from .question import ask
from .scripted import Demonstrator
from .worker import NoAnswer, shared_worker

TASK_S = 60.0
"""For making a task; a few of them search for solvable puzzles."""
SCORE_S = 30.0
"""For rating a reply. One that confuses a scorer for longer is wrong."""
TAGGED = "Think it over, then write the final answer alone between <answer> and </answer>."
"""What a reply is to look like; reasoning-gym's own prompts ask for the same tags."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Environment):
    """The reward is the task's own score, 0 to 1; some tasks give part of it for an answer that is nearly right."""

    def __init__(
        self,
        *,
        seed: int,
        task: Annotated[str, Meta(min_length=1)],
        params: dict[str, Any] | None = None,
        level: Annotated[int, Meta(ge=0)] | dict[str, int] | None = None,
        tags: bool = True,
        system: str = TAGGED,
        max_tokens: Annotated[int, Meta(ge=1)] | None = None,
        chat: bool | None = None,
    ) -> None:
        """``task``: name in reasoning-gym. ``params``: of its configuration.
        ``level``: of its curriculum: one number for all attributes, or a table of them by name.
        ``tags``: whether the answer stands between <answer> and </answer>; otherwise the whole reply is the answer.
        ``system``: what is said before the question; not used without ``tags`` unless it is given.
        ``max_tokens``: most tokens of a reply. ``chat``: by the model's chat template; if not given, where it has one.
        """
        super().__init__(seed=seed)
        if importlib.util.find_spec("reasoning_gym") is None:
            raise EnvironmentFault("the package reasoning-gym is not installed: pip install 'headrace[environments]'")
        for name in ("seed", "size"):
            if params and name in params:
                raise EnvironmentFault(f"environments.args.params.{name} cannot be set: the run's seed decides")
        self.tags, self.max_tokens, self.chat = tags, max_tokens, chat
        self.system = "" if system == TAGGED and not tags else system
        self._configuration = {"task": task, "params": params or {}, "level": level, "seed": seed}
        self._worker = shared_worker("reasoning_gym_worker.py")
        self._ask({}, TASK_S)

    def task(self, index: int) -> Task:
        made = self._ask({"index": index}, TASK_S)
        return Task(prompt=made["question"], answer=made["answer"] or "", data={"index": index})

    async def play(self, task: Task, policy: Policy) -> Outcome:
        reply = await ask(policy, task.prompt, system=self.system, chat=self.chat, max_tokens=self.max_tokens)
        answer = self._answer(reply.text)
        cut = reply.finish == "length"
        score = 0.0
        if answer is not None and not cut:
            score = await asyncio.to_thread(self._score, task.data["index"], answer)
        return Outcome(
            reward=score,
            metrics={"right": float(score >= 1.0), "cut": float(cut), "answered": float(answer is not None)},
        )

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator | None:
        """None for the few tasks that have many right answers and name none."""
        if not task.answer:
            return None
        return lambda _: f"<answer>{task.answer}</answer>" if self.tags else task.answer

    def _answer(self, text: str) -> str | None:
        """What the reply gives as its answer; of several the last. None where it gives none."""
        if not self.tags:
            return text.strip()
        found = _ANSWER.findall(text)
        return str(found[-1]).strip() if found else None

    def _score(self, index: int, answer: str) -> float:
        writable = answer.encode("utf-8", errors="replace").decode()  # a lone surrogate is not
        try:
            return float(self._ask({"index": index, "reply": writable}, SCORE_S)["score"])
        except NoAnswer:
            return 0.0

    def _ask(self, request: dict[str, Any], within_s: float) -> Any:
        try:
            said = self._worker.ask({**self._configuration, **request}, within_s=within_s)
        except NoAnswer as error:
            if "reply" in request:
                raise
            raise EnvironmentFault(f"reasoning-gym made no task ({error}): take smaller params or level") from None
        if "error" in said:
            raise EnvironmentFault(f"{said['error']}: correct environments.args")
        return said
