"""How a play ended, and whether that can be told."""

from __future__ import annotations

from typing import SupportsFloat

import msgspec

from schemas import EnvironmentFault, EventInvalid, check_outcome

from .policy import Transcript


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a play ended."""

    reward: float
    """Finite; must not depend on wall-clock time."""
    metrics: dict[str, float] = {}
    """Named figures, averaged by environment in events, status and summary; for example ``win``."""


def checked_outcome(outcome: object, transcript: Transcript) -> Outcome:
    """What ``play`` returned, as an event carries it: plain numbers (numpy's can't be encoded), finite, named in text.

    ``transcript``: what was said in the play. Raises EnvironmentFault for anything else, or where nothing was said.
    """
    if not isinstance(outcome, Outcome):
        raise EnvironmentFault(f"play returned {type(outcome).__name__}, not an Outcome")
    if not isinstance(outcome.metrics, dict):
        raise EnvironmentFault(f"metrics is a {type(outcome.metrics).__name__}, not a dict of numbers by name")
    for name in outcome.metrics:
        if not (isinstance(name, str) and name.isprintable()):
            raise EnvironmentFault(f"a metric is named {name!r}: names are printable text")
    reward = _number(outcome.reward, "reward")
    metrics = {name: _number(value, f"metric {name!r}") for name, value in outcome.metrics.items()}
    try:
        check_outcome(reward, metrics)
    except EventInvalid as error:
        raise EnvironmentFault(error.reason) from None
    if not transcript.logprobs.size:
        raise EnvironmentFault("play returned without a reply: call policy.say at least once")
    return Outcome(reward=reward, metrics=metrics)


def _number(value: object, what: str) -> float:
    """``value`` as a float. Text is none, not even where it reads like one."""
    if not isinstance(value, SupportsFloat):
        raise EnvironmentFault(f"{what} is a {type(value).__name__}, not a number")
    try:
        return float(value)
    except Exception as error:  # whatever a foreign number does
        raise EnvironmentFault(f"{what} is a {type(value).__name__} that is no float: {error}") from error
