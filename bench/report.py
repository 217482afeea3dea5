"""How a benchmark reports: tables for people; with ``--json`` one object for programs, as the last line.

A reach is a figure that the project promises: its name, what it should reach, what was measured, whether it was met.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Literal, NamedTuple

from bench.trials import Trials

Cell = str | float | Trials
PACKAGES = ("headrace", "msgspec", "nats-py", "torch", "torchtitan")


class Reach(NamedTuple):
    """``measured`` must be at most (or at least) ``reach``."""

    name: str
    reach: float
    measured: float
    better: Literal["lower", "higher"] = "lower"

    @property
    def met(self) -> bool:
        return self.measured <= self.reach if self.better == "lower" else self.measured >= self.reach


class Table(NamedTuple):
    """One row for each way or setting that was measured; the first column names it."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


def arguments() -> list[str]:
    """What followed the benchmark's name, but for ``--json``."""
    return [word for word in sys.argv[1:] if word != "--json"]


def median_s(act: Callable[[], object], *, repeat: int = 30) -> float:
    """Median seconds of one call, after one that is not counted."""
    act()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def report(title: str, measured: Sequence[tuple[str, str] | Table], reaches: list[Reach]) -> None:
    """Print what was measured, with what. ``measured``: tables, or lines of a name and what was found."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    print(f"{title}\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}")
    lines = [each for each in measured if not isinstance(each, Table)]
    tables = [each for each in measured if isinstance(each, Table)]
    if lines:
        tables.insert(0, Table(("what", "measured"), lines))
    for table in tables:
        _print_table(table)
    print()
    for reach in reaches:
        mark = "met" if reach.met else "MISSED"
        sign = "<=" if reach.better == "lower" else ">="
        print(f"  {reach.name:60} {reach.measured:.4g} ({sign} {reach.reach:g}: {mark})")
    if "--json" in sys.argv[1:]:
        found = [[dict(zip(table.columns, map(_plain, row), strict=True)) for row in table.rows] for table in tables]
        met = [reach._asdict() | {"met": reach.met} for reach in reaches]
        print(json.dumps({"title": title, "tables": found, "reaches": met}))


def _print_table(table: Table) -> None:
    lines = [[_text(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    print()
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _text(cell: Cell) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _plain(cell: Cell) -> object:
    return {"median": cell.median, "values": cell.values} if isinstance(cell, Trials) else cell
