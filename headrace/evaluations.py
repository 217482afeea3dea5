"""The evaluations of a run, folded from their events: how each version does on the held-out tasks."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from schemas import Evaluated, EvaluationSettings

from .config import RunConfig
from .estimate import Estimate, estimate, pass_at
from .readable import number, printable


class Plan(msgspec.Struct, frozen=True):
    """What a run evaluates."""

    settings: EvaluationSettings
    environments: list[str]
    """Names of those that are evaluated, sorted."""
    steps: int
    """The run's last version."""

    @property
    def plays(self) -> int:
        """Of one version in one environment."""
        return self.settings.tasks * self.settings.samples

    def due(self, newest: int | None) -> list[int]:
        """Versions that are to be evaluated, of those announced up to ``newest``."""
        if newest is None:
            return []
        return [version for version in range(newest + 1) if self.settings.due(version, last=self.steps)]


def plan_of(config: RunConfig) -> Plan | None:
    """What the run evaluates; None where it evaluates nothing."""
    names = config.evaluation.evaluated(environment.name for environment in config.environments)
    return Plan(config.evaluation, sorted(names), config.run.steps) if names else None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How a version does in an environment."""

    env: str
    version: int
    tasks: int
    """Held-out tasks all of whose plays are published."""
    tasks_due: int | None
    """Null where the run's configuration is not at hand."""
    plays: int
    """Published, those that failed included."""
    errors: int
    """Plays that failed: they count for no figure below."""
    reward: Estimate | None
    """Null while no play has one."""
    metrics: dict[str, Estimate]
    """Named metrics of the outcomes."""
    pass_at: dict[str, float]
    """k to pass@k: a play passes with a reward of ``evaluation.pass_reward`` at least."""


class _Play(msgspec.Struct, frozen=True):
    reward: float | None
    metrics: dict[str, float]


class Evaluations:
    """Take events in with ``take``; of several with one identity the first in the log counts."""

    def __init__(self) -> None:
        self._plays: defaultdict[tuple[str, int], dict[tuple[int, int], _Play]] = defaultdict(dict)

    def take(self, event: Evaluated) -> None:
        """Count one play."""
        plays = self._plays[event.env, event.version]
        plays.setdefault((event.task, event.sample), _Play(event.reward, event.metrics))

    def published(self, env: str, version: int) -> int:
        """Plays of a version in an environment so far."""
        return len(self._plays.get((env, version), ()))

    def missing(self, plan: Plan, version: int) -> int:
        """Plays of ``version`` that are still to come."""
        return sum(max(0, plan.plays - self.published(env, version)) for env in plan.environments)

    def scores(self, plan: Plan | None, newest: int | None) -> list[Score]:
        """By environment and version, with those that are due and were not begun; ``newest``: announced version."""
        due = [] if plan is None else [(env, version) for env in plan.environments for version in plan.due(newest)]
        return [self.score(env, version, plan) for env, version in sorted({*self._plays, *due})]

    def score(self, env: str, version: int, plan: Plan | None) -> Score:
        """How one version does in one environment."""
        plays = self._plays.get((env, version), {})
        by_task: defaultdict[int, list[_Play]] = defaultdict(list)
        for (task, _), play in sorted(plays.items()):
            by_task[task].append(play)
        samples = max(map(len, by_task.values()), default=0) if plan is None else plan.settings.samples
        good = [[play for play in task if play.reward is not None] for task in by_task.values()]
        rewards = [[play.reward for play in task if play.reward is not None] for task in good if task]
        names = sorted({name for task in good for play in task for name in play.metrics})
        return Score(
            env=env,
            version=version,
            tasks=sum(len(task) >= samples for task in by_task.values()),
            tasks_due=None if plan is None else plan.settings.tasks,
            plays=len(plays),
            errors=sum(play.reward is None for play in plays.values()),
            reward=_rounded(rewards),
            metrics={name: each for name in names if (each := _rounded(_of_metric(good, name))) is not None},
            pass_at=_passes(rewards, samples, 1.0 if plan is None else plan.settings.pass_reward),
        )


def score_line(score: Score) -> str:
    """``sums v0: 300 of 300 tasks, reward 0.31 [0.26, 0.37] (wilson), pass@1 0.31``."""
    due = "" if score.tasks_due is None else f" of {score.tasks_due}"
    named = {} if score.reward is None else {"reward": score.reward}
    parts = [f"{score.env} v{score.version}: {score.tasks}{due} tasks"]
    parts += [f"{printable(name)} {_interval(each)}" for name, each in (named | score.metrics).items()]
    parts += [f"pass@{k} {number(chance)}" for k, chance in score.pass_at.items()]
    if score.errors:
        parts.append(f"{score.errors} of {score.plays} plays failed")
    return ", ".join(parts)


def _interval(each: Estimate) -> str:
    bounds = "" if each.low is None or each.high is None else f" [{number(each.low)}, {number(each.high)}]"
    return f"{number(each.mean)}{bounds} ({each.method})"


def _of_metric(tasks: list[list[_Play]], name: str) -> list[list[float]]:
    figures = [[play.metrics[name] for play in task if name in play.metrics] for task in tasks]
    return [task for task in figures if task]


def _rounded(figures: list[list[float]]) -> Estimate | None:
    if not figures:
        return None
    found = estimate(figures)
    low, high = (None if bound is None else round(bound, 4) for bound in (found.low, found.high))
    return Estimate(mean=round(found.mean, 4), low=low, high=high, method=found.method)


def _passes(rewards: list[list[float]], samples: int, enough: float) -> dict[str, float]:
    """pass@k for 1, 2, 4, ... and for all the plays that a task has."""
    tasks = [(len(task), sum(reward >= enough for reward in task)) for task in rewards]
    powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    chances = {k: pass_at(k, tasks) for k in (*powers, samples) if k}
    return {str(k): round(chance, 4) for k, chance in chances.items() if chance is not None}
