"""Repeated measurements of several ways to do one thing, taken in turn so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping

import msgspec

REPETITIONS = 5


class Trials(msgspec.Struct, frozen=True):
    """What was measured of one way, in the order in which it was."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        """Median, and the spread from the lowest to the highest."""
        return f"{self.median:.4g} ({min(self.values):.4g} to {max(self.values):.4g})"


def turns(names: list[str], repetitions: int = REPETITIONS) -> list[str]:
    """Whose turn it is: each name ``repetitions`` times, and each in turn the first of a round."""
    return [names[(place + round) % len(names)] for round in range(repetitions) for place in range(len(names))]


def alternate(ways: Mapping[str, Callable[[], float]], repetitions: int = REPETITIONS) -> dict[str, Trials]:
    """Measure each way ``repetitions`` times, in turn. A way returns its figure."""
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for name in turns(list(ways), repetitions):
        measured[name].append(ways[name]())
    return {name: Trials(values) for name, values in measured.items()}


async def alternate_async(
    ways: Mapping[str, Callable[[], Awaitable[float]]], repetitions: int = REPETITIONS
) -> dict[str, Trials]:
    """As ``alternate``, for ways that are awaited."""
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for name in turns(list(ways), repetitions):
        measured[name].append(await ways[name]())
    return {name: Trials(values) for name, values in measured.items()}
