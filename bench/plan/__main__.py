"""``headrace plan`` against measured runs, and how long its simulation takes.

python -m bench.plan [SEEDS [ROLLOUTS]] [--json]: 3 and 1,000,000 unless given. One run of each seed, by ``headrace up``
with an engine that keeps a set pace and the real trainer, gives the rates; from them three other layouts are predicted,
and then run. About 12 minutes on two quiet cores, of which the simulation takes four.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Reach, Table, arguments, report
from bench.runs import Run, run_up, say
from bench.trials import Trials
from headrace.models import make_tiny
from headrace.plan import Layout, Rates, Simulation, distribution, pair, predict
from tests.end_to_end.conftest import ROOT

STEPS = 16
LIMIT_S = 300.0
CONFIG = """
[run]
name = "planned"
steps = {steps}

[model]
path = "{model}"

[[environments]]
name = "reverse"
args = {{ length = 60, letters = "abc" }}

[policy]
max_off_policy_steps = 1

[generator]
engine = "bench.plan.engine:PacedEngine"
concurrency = 32
max_model_len = 128
metric_interval_s = 0.5

[trainer]
groups_per_step = 8
group_size = 8
row_tokens = 128
lr = 1e-6
max_logprob_gap = 1e6
checkpoint_every = 1000
"""
LAYOUTS = {
    "generators short": ["generator.concurrency=16", "policy.max_off_policy_steps=2"],
    "trainer short": ["generator.count=2", "generator.concurrency=96", "trainer.groups_per_step=12",
                      "policy.max_off_policy_steps=2"],
    "synchronous": ["generator.concurrency=64", "policy.max_off_policy_steps=0"],
}  # fmt: skip
"""What is changed for each; the rates come from a run without."""
SHOWN = ("step_s", "trainer_idle_share", "generator_idle_share", "staleness_mean")
WITHIN = 0.15
GENERATORS, PLACES, BIG_S = 1000, 32, 600.0


def measured(run: Run) -> dict[str, float]:
    """As a prediction names it."""
    steps_s = (run.committed_at[-1] - run.committed_at[0]) / (len(run.committed_at) - 1)
    return {"step_s": steps_s} | {name: float(run.summary[name]) for name in SHOWN[1:]}


def predicted(config: Path, source: Path, sets: list[str]) -> dict[str, Any]:
    """What ``headrace plan`` says, from the rates of the run in ``source``."""
    command = [
        sys.executable,
        "-m",
        "headrace",
        "plan",
        str(config),
        "--from",
        "planned",
        "--dir",
        str(source),
        "--json",
    ]
    for each in sets:
        command += ["--set", each]
    plan: dict[str, Any] = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    )
    return plan


def compare(root: Path, seeds: int) -> tuple[list[tuple[Any, ...]], dict[str, list[float]]]:
    """Rows of the table; and for each figure by how much the closed form and the simulation are wrong, at most."""
    model, config = root / "tiny", root / "config.toml"
    make_tiny(model)
    config.write_text(CONFIG.format(steps=STEPS, model=model))
    found: dict[tuple[str, str, str], list[float]] = {}
    errors: dict[str, list[float]] = {}
    for seed in range(seeds):
        own = f"run.seed={seed}"
        source = root / f"rates-{seed}"
        run_up(source, config, [own], limit_s=LIMIT_S)
        for name, sets in LAYOUTS.items():
            plan = predicted(config, source, sets)
            truth = measured(run_up(root / f"{name.replace(' ', '-')}-{seed}", config, [own, *sets], limit_s=LIMIT_S))
            for figure in SHOWN:
                for by, value in (
                    ("closed form", plan["closed_form"][figure]),
                    ("simulated", plan["simulated"][figure]),
                ):
                    found.setdefault((name, figure, by), []).append(value)
                    error = abs(value - truth[figure]) / (truth[figure] if figure == "step_s" else 1.0)
                    errors.setdefault(f"{name}: {figure}, {by}", []).append(error)
                found.setdefault((name, figure, "measured"), []).append(truth[figure])
            say(f"  {name}: {truth['step_s']:.2f} s a step, planned {plan['simulated']['step_s']:.2f}")
    ways = ("measured", "closed form", "simulated")
    rows = [(name, figure, *(Trials(found[name, figure, by]) for by in ways)) for name in LAYOUTS for figure in SHOWN]
    return rows, errors


def big(rollouts: int) -> tuple[float, float, int]:
    """Seconds and MiB of a simulation of 1,000 generators; and its rollouts."""
    layout = Layout(
        generators=GENERATORS, concurrency=PLACES, group_size=8, groups_per_step=512, bound=2, stale="drop",
        steps=max(2, rollouts // (512 * 8)),
    )  # fmt: skip
    rates = Rates(
        token_s=0.02, request_s=0.0002, train_token_s=1e-6, step_s=2.0, commit_s=1.0, fetch_s=2.0, pause_s=0.5,
        closed_share=0.1,
    )  # fmt: skip
    played = pair(distribution(800, 8000, most=16_000), distribution(0.5, 10))
    simulation = Simulation(layout, rates, played)
    began = told = time.monotonic()

    def tell(step: int) -> None:
        nonlocal told
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"  simulated {step} of {layout.steps} steps")

    simulation.run(told=tell)
    took_s = time.monotonic() - began
    closed_form = predict(layout, rates, played)
    say(f"  simulated {simulation.prediction.step_s:.1f} s a step, closed form {closed_form.step_s:.1f}")
    return took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, simulation.issued_groups() * 8


def main() -> None:
    sizes = [int(word) for word in arguments()]
    seeds, rollouts = (sizes + [3, 1_000_000][len(sizes) :])[:2]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows, errors = compare(Path(folder), seeds)
    took_s, memory_mib, played = big(rollouts)
    worst = {
        (figure, by): max(median(of) for name, of in errors.items() if name.endswith(f"{figure}, {by}"))
        for figure in SHOWN[:3]
        for by in ("closed form", "simulated")
    }
    report(
        f"plans of {len(LAYOUTS)} layouts from the rates of another, {STEPS} steps, {seeds} seeds",
        [
            Table(("layout", "figure", "measured", "closed form", "simulated"), rows),
            (f"simulating {GENERATORS} generators, {played:,} rollouts", f"{took_s:.0f} s, {memory_mib:.0f} MiB"),
        ],
        [
            *(Reach(f"{figure}, {by}: worst layout's error", WITHIN, error) for (figure, by), error in worst.items()),
            Reach("simulation of a million rollouts, s", BIG_S, took_s * 1e6 / played),
        ],
    )


if __name__ == "__main__":
    main()
