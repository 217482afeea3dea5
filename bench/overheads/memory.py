"""Whether the memory of a run's processes stays the same over many steps."""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.report import Reach, Table
from bench.runs import Use, run_up
from tests.end_to_end.conftest import STAND_IN

LIMIT_S = 1200.0
MOST_GROWTH = 0.05
"""Of the resident memory, from the second fifth of the run to its last."""
SLOW = ("trainer.lr=1e-6",)
"""The demo, so slow to learn that there is something to learn to the end: once all replies are right, a step waits for
the rare group that is not alike."""


def measure(steps: int, root: Path) -> tuple[Table, list[Reach]]:
    """One run of the demo."""
    sets = [f"run.steps={steps}", f"generator.engine={STAND_IN}", *SLOW]
    run = run_up(root / "memory", Path("configs/demo.toml"), sets, limit_s=LIMIT_S)
    rows, reaches = [], []
    for role, uses in sorted(run.uses.items()):
        early, late = _fifth(uses, 1), _fifth(uses, 4)
        growth = late / early - 1
        rows.append((role, early, late, f"{100 * growth:+.1f} %"))
        reaches.append(Reach(f"memory of the {role}, growth over {steps} steps", MOST_GROWTH, growth))
    return Table(("role", "MiB in the second fifth", "MiB in the last", "growth"), rows), reaches


def _fifth(uses: list[Use], number: int) -> float:
    """Median resident memory in a fifth (from 0) of the time from the process's start to its end."""
    begin, end = uses[0].at_s, uses[-1].at_s
    low, high = (begin + (end - begin) * (number + edge) / 5 for edge in (0, 1))
    return statistics.median(use.rss_mib for use in uses if low <= use.at_s <= high)
