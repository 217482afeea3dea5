"""Where the time of a step goes, in whole runs by the real command with the stand-in engine."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from bench.report import Reach, Table
from bench.runs import Run, run_up
from bench.trials import Trials
from headrace.config import load
from tests.end_to_end.conftest import STAND_IN

CRITICAL = ("assemble_s", "pack_s", "commit_wait_s", "export_s", "snapshot_s")
BESIDE = ("digest_s", "ledger_s", "weights_s", "checkpoint_s")
SEEDS = (0, 1, 2)
LIMIT_S = 900.0
SHOWN_EVERY = 3
"""Steps between two checkpoints here, so that a few steps have some."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, and what its steps may spend on what is not computing."""

    name: str
    config: Path
    steps: int
    reach: float
    """Most that the overhead is of a step without its wait for rollouts."""


def measure(case: Case, root: Path) -> tuple[Table, Reach]:
    """One run for each seed."""
    runs = [_run(case, root / f"{case.name}-{seed}", seed) for seed in SEEDS]
    every = load(case.config).trainer.checkpoint_every
    means = {name: [_mean(run, name, every) for run in runs] for name in ("compute_s", *CRITICAL, *BESIDE)}
    overhead = [sum(each) for each in zip(*(means[name] for name in CRITICAL), strict=True)]
    step = [spent + computed for spent, computed in zip(overhead, means["compute_s"], strict=True)]
    rows = [_row(name, means[name], step, "beside" if name in BESIDE else "critical") for name in means]
    rows.append(_row("all but compute", overhead, step, "critical"))
    share = statistics.median(spent / whole for spent, whole in zip(overhead, step, strict=True))
    table = Table((f"{case.name} step: part", "path", "ms", "% of the critical path"), rows)
    return table, Reach(f"overhead on the critical path of a {case.name} step", case.reach, share)


def _run(case: Case, folder: Path, seed: int) -> Run:
    sets = [f"run.seed={seed}", f"run.steps={case.steps}", f"generator.engine={STAND_IN}", "weights.keep=4"]
    return run_up(folder, case.config, [*sets, f"trainer.checkpoint_every={SHOWN_EVERY}"], limit_s=LIMIT_S)


def _row(name: str, spent: list[float], step: list[float], path: str) -> tuple[str, str, Trials, Trials]:
    shares = [100 * each / whole for each, whole in zip(spent, step, strict=True)]
    return name.removesuffix("_s"), path, Trials([1000 * each for each in spent]), Trials(shares)


def _mean(run: Run, name: str, checkpoint_every: int) -> float:
    """Seconds of a part in a step, in the mean after the first; checkpoints as often as the configuration has them."""
    steps = run.steps[1:]
    if name == "snapshot_s":
        made = [step.metrics[name] for step in steps if step.number % SHOWN_EVERY == 0]
    elif name == "checkpoint_s":  # told by the step that comes after
        made = [step.metrics[name] for step in steps if step.number % SHOWN_EVERY == 1]
    else:
        return statistics.mean(step.metrics[name] for step in steps)
    return statistics.mean(made) / checkpoint_every if made else 0.0
