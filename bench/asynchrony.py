"""Asynchronous against synchronous: the same run with rollouts of a long tail, by how old a token may be.

python -m bench.asynchrony [STEPS [SEEDS]] [--json]: 120 and 3 unless given. Whole runs by ``headrace up``: the
stand-in engine with the demo's model, real torchtitan, and delays that are really waited: log-normal, the 99th
percentile 20 times the median. The median is chosen by two short runs so that the synchronous run (bound 0) waits 65 %
of its time, which makes 2.86 the ideal ratio. Seed 0 is run with every setting, the others with bound 0 and the
fastest of those that reach the same reward. About 28 minutes on two quiet cores: the trainer has one, the generator and
the server the other.

The number of steps is one after which learning has ended: in its middle, old tokens cost reward. How fast a setting
reaches one on the way has a column of its own.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path

import msgspec

from bench.report import Reach, Table, arguments, report
from bench.runs import Run, run_up, say
from bench.trials import Trials
from headrace.models import make_tiny
from tests.end_to_end.conftest import STAND_IN

CONFIG = """
[run]
name = "tail"

[model]
path = "{model}"

[[environments]]
name = "long_tail"

[environments.args]
kind = "reverse"
args = {{ length = 5 }}
tail = 20.0

[generator]
engine = "{engine}"
concurrency = 1024
max_model_len = 64
kv_cache_gib = 0.5

[trainer]
groups_per_step = 8
group_size = 8
row_tokens = 64
micro_batch_tokens = 128
lr = 5e-4
kl_coef = 1e-3
activation_checkpointing = "full"
checkpoint_every = 10

[weights]
keep = 8
"""
STEPS, SEEDS = 120, 3
WAITS = 0.65
"""Share of its time that the synchronous run shall wait."""
TRIED_S = (0.001, 0.04)
"""Medians of the delay in the two short runs from which the one that makes it wait so long is reckoned."""
TRIED_STEPS = 12
SAME_REWARD = 0.03
"""Rewards that differ by less are the same: two seeds of one setting differ by as much."""
REWARD, REWARD_STEPS = 0.9, 5
"""That is reached where as many steps have it in the mean."""
LIMIT_S = 600.0


class Setting(msgspec.Struct, frozen=True):
    """``policy.max_off_policy_steps`` and ``policy.stale``."""

    bound: int
    stale: str = "drop"

    def __str__(self) -> str:
        return f"{self.bound}, {self.stale}"


SYNCHRONOUS = Setting(0)
SETTINGS = [SYNCHRONOUS, *(Setting(bound) for bound in (1, 2, 4, 8)), Setting(1, "mask"), Setting(4, "mask")]


class Bench:
    """The runs in one folder, with one model."""

    def __init__(self, root: Path, steps: int) -> None:
        make_tiny(root / "tiny")
        self._root, self._steps = root, steps
        self._config = root / "config.toml"
        self._config.write_text(CONFIG.format(model=root / "tiny", engine=STAND_IN))
        self._count = 0

    def run(self, setting: Setting, *, seed: int, median_s: float, steps: int | None = None) -> Run:
        """One run to its end."""
        self._count += 1
        sets = [
            f"run.seed={seed}", f"run.steps={steps or self._steps}", f"policy.max_off_policy_steps={setting.bound}",
            f"policy.stale={setting.stale}", f"environments.0.args.median_s={median_s:.6f}",
        ]  # fmt: skip
        say(f"bound {setting}, seed {seed}")
        return run_up(self._root / str(self._count), self._config, sets, limit_s=LIMIT_S)

    def median_s(self) -> float:
        """The median delay with which the synchronous run waits for a share WAITS of its time."""
        waits = []
        for median_s in TRIED_S:
            run = self.run(SYNCHRONOUS, seed=100, median_s=median_s, steps=TRIED_STEPS)
            waits.append(_typical(run, "wait_s"))
        busy_s = _typical(run, "compute_s") + _typical(run, "overhead_s")
        slope = (waits[1] - waits[0]) / (TRIED_S[1] - TRIED_S[0])
        wanted_s = busy_s * WAITS / (1 - WAITS)
        return max(TRIED_S[0], TRIED_S[0] + (wanted_s - waits[0]) / slope)


def _typical(run: Run, name: str) -> float:
    """Seconds a step, after the first ones, in which the engine starts and memory is taken."""
    return statistics.median(step.metrics[name] for step in run.steps[3:])


def wall_s(run: Run) -> float:
    """From the commit of the first step to that of the last."""
    return run.committed_at[-1] - run.committed_at[0]


def reached_s(run: Run) -> float:
    """From the commit of the first step until REWARD is reached; infinite where it never is."""
    rewards = [step.metrics["reward_mean"] for step in run.steps]
    for last in range(REWARD_STEPS, len(rewards) + 1):
        if statistics.mean(rewards[last - REWARD_STEPS : last]) >= REWARD:
            return run.committed_at[last - 1] - run.committed_at[0]
    return math.inf


def reward(run: Run) -> float:
    """At its end."""
    return float(run.summary["reward_last"])


def row(setting: Setting, runs: list[Run], synchronous: list[Run]) -> tuple[str | float | Trials, ...]:
    """``runs`` of one setting, and as many synchronous ones with the same seeds."""
    ratios = [wall_s(theirs) / wall_s(ours) for theirs, ours in zip(synchronous, runs, strict=False)]
    summaries = [run.summary for run in runs]

    def all_of(name: str) -> Trials:
        return Trials([each[name] for each in summaries])

    return (
        str(setting),
        Trials([wall_s(run) for run in runs]),
        Trials(ratios),
        all_of("trainer_idle_share"),
        all_of("generator_idle_share"),
        all_of("tokens_per_s_trained"),
        all_of("staleness_mean"),
        float(max(each["staleness_max"] for each in summaries)),
        Trials([float(each["left_out"].get("stale", 0)) for each in summaries]),
        Trials([1000 * _typical(run, "compute_s") for run in runs]),
        Trials([reward(run) for run in runs]),
        Trials([reached_s(run) for run in runs]),
    )


COLUMNS = (
    "bound, stale", "wall s", "times faster", "trainer idle", "generators idle", "tokens/s trained", "staleness mean",
    "greatest", "left out as stale", "compute ms a step", "reward at the end", f"s to reward {REWARD:g}",
)  # fmt: skip


def main() -> None:
    steps, seeds = [*map(int, arguments()), *(STEPS, SEEDS)[len(arguments()) :]]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        bench = Bench(Path(root), steps)
        median_s = bench.median_s()
        runs = {setting: [bench.run(setting, seed=0, median_s=median_s)] for setting in SETTINGS}
        synchronous = runs[SYNCHRONOUS]
        wanted = reward(synchronous[0]) - SAME_REWARD
        fastest = min(
            (each for each in SETTINGS if reward(runs[each][0]) >= wanted), key=lambda each: wall_s(runs[each][0])
        )
        for seed in range(1, seeds):
            for setting in dict.fromkeys((SYNCHRONOUS, fastest)):
                runs[setting].append(bench.run(setting, seed=seed, median_s=median_s))
    rows = {setting: row(setting, found, synchronous) for setting, found in runs.items()}
    idle = statistics.median(run.summary["trainer_idle_share"] for run in synchronous)
    rewards = {each: statistics.mean(map(reward, found)) for each, found in runs.items()}
    ratio, fastest_idle = rows[fastest][2], rows[fastest][3]
    assert isinstance(ratio, Trials)
    assert isinstance(fastest_idle, Trials)
    report(
        f"Rollouts with a long tail, {steps} steps",
        [
            ("median delay, 99th percentile", f"{1000 * median_s:.0f} ms, {20_000 * median_s:.0f} ms"),
            ("the synchronous run waits", f"{100 * idle:.1f} % of its time: ideal ratio {1 / (1 - idle):.2f}"),
            ("fastest with the same reward", str(fastest)),
            Table(COLUMNS, list(rows.values())),
        ],
        [
            Reach("times faster than synchronous", 2.5, ratio.median, "higher"),
            Reach("reward at the end, less that of synchronous", -SAME_REWARD, rewards[fastest] - rewards[SYNCHRONOUS],
                  "higher"),
            Reach("trainer idle", 0.05, fastest_idle.median),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
