"""How a benchmark reports: a table for people; with JSON=1 one object for programs, as the last line.

A reach is a figure that the project promises: its name, what it should reach, what was measured, whether it was met.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Literal, NamedTuple


class Reach(NamedTuple):
    """``measured`` must be at most (or at least) ``reach``."""

    name: str
    reach: float
    measured: float
    better: Literal["lower", "higher"] = "lower"

    @property
    def met(self) -> bool:
        return self.measured <= self.reach if self.better == "lower" else self.measured >= self.reach


def median_s(act: Callable[[], object], *, repeat: int = 30) -> float:
    """Median seconds of one call, after one that is not counted."""
    act()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def report(title: str, rows: list[tuple[str, str]], reaches: list[Reach]) -> None:
    """Print what was measured, with what."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("headrace", "msgspec", "torch", "nats-py"))
    print(f"{title}\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}\n")
    for name, value in rows:
        print(f"  {name:44} {value}")
    for reach in reaches:
        mark = "met" if reach.met else "MISSED"
        sign = "<=" if reach.better == "lower" else ">="
        print(f"  {reach.name:44} {reach.measured:.4g} ({sign} {reach.reach:g}: {mark})")
    if os.environ.get("JSON") == "1":
        print(json.dumps({"reaches": [reach._asdict() | {"met": reach.met} for reach in reaches]}))
