"""``jsonl``: prompts and answers from a file of JSON lines, one turn each. The way most people start."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import regex
from msgspec import Meta

from schemas import EnvironmentFault, Task

from .environment import Environment
from .lines import Line, load_lines
from .outcome import Outcome
from .policy import Policy
from .question import ask
from .scoring import Function, found, load_scorer
from .scripted import Demonstrator
from .shuffling import shuffled

REDRAW = 2**40
"""Indices apart at which a task is drawn again, when it is not of the kind wanted (held out or not)."""
WRAPPINGS = ("{}", "\\boxed{{{}}}", "#### {}", "Answer: {}", "<answer>{}</answer>")
"""Ways to write an answer that a demonstration tries until ``extract`` finds it."""


class Jsonl(Environment):
    """Every line is asked once before any is asked again, each time in another order."""

    def __init__(
        self,
        *,
        seed: int,
        path: Annotated[str, Meta(min_length=1)],
        template: Annotated[str, Meta(min_length=1)] = "{prompt}",
        system: str = "",
        answer: Annotated[str, Meta(min_length=1)] = "answer",
        score: Annotated[str, Meta(min_length=1)] = "exact",
        extract: str = "",
        shuffle: bool = True,
        max_tokens: Annotated[int, Meta(ge=1)] | None = None,
        chat: bool | None = None,
    ) -> None:
        """``path``: the file, relative to the folder that Headrace is started in.
        ``template``: the question, with the line's keys in braces. ``system``: what is said before it.
        ``answer``: key of the answer. ``score``: exact, numeric, regex or module:function.
        ``extract``: regular expression that finds the answer in a reply: the last match, its first group if it has one.
        ``shuffle``: in an order by seed; otherwise in the order of the file.
        ``max_tokens``: most tokens of a reply; all the room there is where it is not given.
        ``chat``: by the model's chat template; where it is not given, if the model has one.
        """
        super().__init__(seed=seed)
        self.path, self.template, self.system, self.answer = Path(path), template, system, answer
        self.shuffle, self.max_tokens, self.chat = shuffle, max_tokens, chat
        self.scorer = load_scorer(score)
        self.extract = _pattern(extract)
        self._names = _names(template)
        self._lines = load_lines(self.path)
        for line in self._lines:
            self._check(line)

    def task(self, index: int) -> Task:
        line = self._lines[self._place(index)]
        data: dict[str, Any] = {"line": line.number}
        if isinstance(self.scorer, Function):
            data["fields"] = line.fields
        return Task(prompt=self._question(line), answer=_text(line.fields.get(self.answer, "")), data=data)

    async def play(self, task: Task, policy: Policy) -> Outcome:
        reply = await ask(policy, task.prompt, system=self.system, chat=self.chat, max_tokens=self.max_tokens)
        cut = reply.finish == "length"
        said = reply.text if self.extract is None else found(self.extract, reply.text)
        reward = 0.0
        if said is not None and not cut:  # of a reply that was cut, nobody knows how it would have ended
            reward = await self.scorer.score(said, task.answer, task.data.get("fields", {}))
        metrics = {"right": float(reward >= 1.0), "cut": float(cut), "extracted": float(said is not None)}
        return Outcome(reward=reward, metrics=metrics)

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator | None:
        for wrapping in WRAPPINGS:
            said = wrapping.format(task.answer)
            if task.answer and (self.extract is None or found(self.extract, said) == task.answer):
                return lambda _, said=said: said  # type: ignore[misc]
        return None

    def _place(self, index: int) -> int:
        turn, place = divmod(index, len(self._lines))
        if self.shuffle:
            return shuffled(place, len(self._lines), f"{self.seed}:jsonl:{turn}")
        again, first = divmod(index, REDRAW)
        return (first + again) % len(self._lines)  # drawn again, it is the next line, never the same one

    def _question(self, line: Line) -> str:
        return self.template.format_map({name: _text(line.fields[name]) for name in self._names})

    def _check(self, line: Line) -> None:
        """Raise EnvironmentFault where the line lacks something, or its answer cannot be compared with."""
        where = f"{self.path}, line {line.number}"
        for name in self._names:
            if name not in line.fields:
                raise EnvironmentFault(_lacks(where, line.fields, name, "environments.args.template"))
        if not self._question(line).strip():
            raise EnvironmentFault(f"{where} makes an empty question: fill in {' and '.join(self._names)}")
        if isinstance(self.scorer, Function):
            return
        if line.fields.get(self.answer) is None:
            raise EnvironmentFault(_lacks(where, line.fields, self.answer, "environments.args.answer"))
        answer = _text(line.fields[self.answer])
        if not answer.strip():
            raise EnvironmentFault(f"{where} has an empty {self.answer!r}: fill it in, or remove the line")
        if problem := self.scorer.check(answer):
            raise EnvironmentFault(f"{where}: its {self.answer} {answer[:60]!r} {problem}")


def _lacks(where: str, fields: Mapping[str, Any], name: str, setting: str) -> str:
    has = ", ".join(fields) or "nothing"
    return f"{where} has no {name!r}, it has {has}: correct the line, or set {setting} to what is there"


def _names(template: str) -> list[str]:
    """Keys in braces. Raises EnvironmentFault where there are none, or something else is in braces."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise EnvironmentFault(
            f"environments.args.template = {template!r} ({error}): write braces that are meant as such twice"
        ) from None
    if not names:
        raise EnvironmentFault(
            f"environments.args.template = {template!r} names no key of the lines: every question would be the same"
        )
    if odd := [name for name in names if not name or set(name) & set(".[]")]:
        raise EnvironmentFault(
            f"environments.args.template = {template!r}: {{{odd[0]}}} is not a key of the lines: write a key, and "
            "braces that are meant as such twice"
        )
    return list(dict.fromkeys(names))


def _pattern(extract: str) -> regex.Pattern[str] | None:
    try:
        return regex.compile(extract) if extract else None
    except regex.error as error:
        raise EnvironmentFault(
            f"environments.args.extract = {extract!r} is not a regular expression ({error}): correct it"
        ) from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
