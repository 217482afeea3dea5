"""How a reply is compared with an answer: exactly, as a number or formula, by pattern, or by a user's function."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import regex

from schemas import EnvironmentFault

from .mathematics import Mathematics

MATCH_S = 1.0
"""For one match of a regular expression. Some patterns would take for ever on some replies."""
CHECKED = 200
"""Answers that are parsed when a run starts; all of a long file would take minutes."""


class Scorer(Protocol):
    """Rates replies. One instance rates many at once."""

    async def score(self, reply: str, answer: str, fields: Mapping[str, Any]) -> float:
        """1 for a right reply and 0 for a wrong one, or what a function says. ``fields``: the whole line."""
        ...

    def check(self, answer: str) -> str:
        """Why ``answer`` cannot be compared with; empty where it can."""
        ...


def load_scorer(name: str) -> Scorer:
    """``exact``, ``numeric``, ``regex`` or ``module:function``. Raises EnvironmentFault for anything else."""
    kinds: dict[str, Callable[[], Scorer]] = {"exact": Exact, "numeric": Numeric, "regex": Pattern}
    return kinds[name]() if name in kinds else Function(name)


class Exact:
    """The same text, but for white space around it."""

    async def score(self, reply: str, answer: str, fields: Mapping[str, Any]) -> float:
        return float(reply.strip() == answer.strip())

    def check(self, answer: str) -> str:
        return ""


class Numeric:
    """The same number or formula: 0.5, 1/2 and 50% are one, also in LaTeX. Of several in a reply the last counts."""

    def __init__(self) -> None:
        self._mathematics = Mathematics()
        self._checked = 0

    async def score(self, reply: str, answer: str, fields: Mapping[str, Any]) -> float:
        return float(await asyncio.to_thread(self._mathematics.equal, answer.strip(), reply.strip()))

    def check(self, answer: str) -> str:
        self._checked += 1
        if self._checked > CHECKED or self._mathematics.knows(answer.strip()):
            return ""
        return "is neither a number nor a formula: correct it, or use another score"


class Pattern:
    """The answer is a regular expression, and a reply in which it is found is right."""

    async def score(self, reply: str, answer: str, fields: Mapping[str, Any]) -> float:
        return float(await asyncio.to_thread(found, regex.compile(answer), reply) is not None)

    def check(self, answer: str) -> str:
        try:
            regex.compile(answer)
        except regex.error as error:
            return f"is not a regular expression ({error}): correct it"
        return ""


class Function:
    """A user's ``function(reply, fields)``: it returns the reward, and may be a coroutine function."""

    def __init__(self, name: str) -> None:
        self._name = name
        module, _, function = name.partition(":")
        if not module or not function:
            raise EnvironmentFault(
                f"there is no score {name!r}: set environments.args.score to exact, numeric, regex or module:function"
            )
        try:
            self._function: Callable[..., Any] = getattr(importlib.import_module(module), function)
        except Exception as error:  # whatever a foreign module does at import
            raise EnvironmentFault(
                f"the score {name!r} cannot be imported ({type(error).__name__}: {error}): install the package that "
                "brings it, or correct environments.args.score"
            ) from error
        if not callable(self._function):
            raise EnvironmentFault(f"the score {name!r} is not a function: correct environments.args.score")

    async def score(self, reply: str, answer: str, fields: Mapping[str, Any]) -> float:
        if inspect.iscoroutinefunction(self._function):
            result = await self._function(reply, dict(fields))
        else:  # one that computes must not hold up the other plays
            result = await asyncio.to_thread(self._function, reply, dict(fields))
        if isinstance(result, Awaitable) or not isinstance(result, int | float):
            raise EnvironmentFault(f"the score {self._name!r} returned {type(result).__name__}: let it return a number")
        return float(result)

    def check(self, answer: str) -> str:
        return ""


def found(pattern: regex.Pattern[str], text: str) -> str | None:
    """The last match of ``pattern`` in ``text``: its first group where it has one. None where there is none in time."""
    try:
        matches = [match[1] if pattern.groups else match[0] for match in pattern.finditer(text, timeout=MATCH_S)]
    except TimeoutError:
        return None
    return (matches[-1] or "") if matches else None
