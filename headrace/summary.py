"""The summary of a run: one object, computed from its log alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Protocol

import msgspec

from .evaluations import Score
from .view import RunView, StepView, SwapView

EDGE = 5
"""Steps at the beginning and the end over which rewards and metrics are averaged."""


class Measured(Protocol):
    """A step, as it was committed or as it is shown."""

    @property
    def metrics(self) -> dict[str, float]: ...


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What ``headrace up`` ends with. Means are over steps unless their name says otherwise."""

    run: str
    steps: int
    wall_s: float
    """From the run's first event to its last step."""
    reward_first: float | None
    """Over the first five steps: all members with a reward, of groups trained or closed."""
    reward_last: float | None
    """Likewise over the last five."""
    metrics: dict[str, dict[str, float]]
    """Environment to named metrics, over the last five steps."""
    metrics_first: dict[str, dict[str, float]]
    """Likewise over the first five."""
    evaluations: list[Score]
    """On held-out tasks, by environment and version."""
    rollouts_published: int
    rollouts_trained: int
    left_out: dict[str, int]
    """Rollouts left out, by reason."""
    staleness_max: int
    """Greatest lag of a trained token, in off-policy steps."""
    staleness_mean: float
    """Over trained tokens."""
    logprob_gap_mean: float | None
    """Mean difference of the trainer's and the generator's log-probability over tokens sampled by the very weights
    that the step updated, in rollouts that no swap crossed."""
    logprob_gap_max: float | None
    trainer_idle_share: float
    """Share of the time that the trainer waited for rollouts. Without the first step after each start."""
    generator_idle_share: float
    """Share of the time after their engines were ready that generators had no request in flight."""
    swaps: int
    """Without the load at each generator's start."""
    swap_pause_ms_p50: float | None
    """Median time in which a swap kept an engine from sampling."""
    swap_pause_ms_max: float | None
    rollouts_of_several_versions: int
    """Trained rollouts whose tokens come from more than one version."""
    prefix_breaks: int
    """Training sequences beyond one for each rollout: a chat template, or the environment, changed what was said."""
    cached_share: dict[str, float]
    """Of the prompt tokens of trained groups, the share from the prefix cache: of ``turn_1``, ``turn_2`` and
    ``turn_3_on``."""
    tokens_per_s_generated: float
    """Sampled tokens of all generators, while any was ready."""
    tokens_per_s_trained: float
    """Without the first step after each start, whose wait is the engines'."""
    restarts: dict[str, int]
    """By role."""


def summarize(view: RunView, *, rollouts_published: int) -> Summary:
    """The summary of what ``view`` has seen."""
    steps = view.steps
    pauses_ms = [1000 * swap.details["pause_s"] for swap in view.swaps if not swap.initial]
    began = view.began_at or 0.0
    return Summary(
        run=view.run,
        steps=view.committed,
        wall_s=round(steps[-1].at - began, 3) if steps else 0.0,
        reward_first=mean_reward(steps[:EDGE]),
        reward_last=mean_reward(steps[-EDGE:]),
        metrics=_env_metrics(steps[-EDGE:]),
        metrics_first=_env_metrics(steps[:EDGE]),
        evaluations=view.scores,
        rollouts_published=rollouts_published,
        rollouts_trained=int(_total(steps, "rollouts_trained")),
        left_out=dict(sum((Counter(step.left_out) for step in steps), Counter())),
        staleness_max=int(max((step.metrics["staleness_max"] for step in steps), default=0)),
        staleness_mean=_weighted(steps, "staleness_mean", "trained_tokens") or 0.0,
        logprob_gap_mean=_weighted(steps, "logprob_gap_mean", "logprob_gap_tokens"),
        logprob_gap_max=max(
            (s.metrics["logprob_gap_max"] for s in steps if "logprob_gap_max" in s.metrics), default=None
        ),
        trainer_idle_share=trainer_idle_share(steps),
        generator_idle_share=generator_idle_share(view),
        swaps=len(pauses_ms),
        swap_pause_ms_p50=round(median(pauses_ms), 1) if pauses_ms else None,
        swap_pause_ms_max=round(max(pauses_ms), 1) if pauses_ms else None,
        rollouts_of_several_versions=int(_total(steps, "rollouts_of_several_versions")),
        prefix_breaks=int(_total(steps, "prefix_breaks")),
        cached_share=_cached_share(steps),
        tokens_per_s_generated=round(tokens_per_s_generated(view), 1),
        tokens_per_s_trained=round(tokens_per_s_trained(steps), 1),
        restarts=_restarts(view),
    )


def trainer_idle_share(steps: Sequence[StepView]) -> float:
    """The wait of the first step after a start is the engines' start, and is left out."""
    waited = sum(step.metrics["wait_s"] for step, _ in timed_steps(steps))
    return round(min(1.0, waited / max(_seconds(steps), 1e-9)), 4)


def generator_idle_share(view: RunView) -> float:
    """Over all generators since each was ready; 0 where none was."""
    ready = [role.gauges for role in view.of_role("generator") if role.gauges.get("ready_s")]
    ready_s = sum(gauges["ready_s"] for gauges in ready)
    return round(1.0 - sum(gauges["busy_s"] for gauges in ready) / ready_s, 4) if ready else 0.0


def tokens_per_s_generated(view: RunView) -> float:
    """Sampled tokens a second, of all generators, over the time in which any was ready."""
    ready = [role for role in view.of_role("generator") if role.gauges.get("ready_s")]
    sampled = sum(role.gauges["sampled_tokens"] for role in ready)
    # Generators that were replaced by others of another name must not count as if they had worked beside them.
    covered_s, until = 0.0, 0.0
    for begin, end in sorted((role.last_seen - role.gauges["ready_s"], role.last_seen) for role in ready):
        covered_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return sampled / covered_s if covered_s else 0.0


def tokens_per_s_trained(steps: Sequence[StepView]) -> float:
    """Trained tokens a second, without the first step after each start."""
    return _total((step for step, _ in timed_steps(steps)), "trained_tokens") / max(_seconds(steps), 1e-9)


def timed_steps(steps: Sequence[StepView]) -> list[tuple[StepView, float]]:
    """Each step that the same trainer took after another, with the seconds between the two.

    The first step of a trainer is a start; before it there may be days in which no process ran.
    """
    return [(step, step.at - before.at) for before, step in pairwise(steps) if not step.first]


def _seconds(steps: Sequence[StepView]) -> float:
    return sum(seconds for _, seconds in timed_steps(steps))


def swap_line(swap: SwapView) -> str:
    """One swap, for the progress display."""
    return f"v{swap.version} {1000 * swap.details['pause_s']:.0f} ms"


def _cached_share(steps: Sequence[StepView]) -> dict[str, float]:
    """By turn; turns that no rollout had are left out."""
    names = {name for step in steps for name in step.metrics if name.startswith("cached_share_")}
    turns = sorted(name.removeprefix("cached_share_") for name in names)
    shares = {turn: _weighted(steps, f"cached_share_{turn}", f"prompt_tokens_{turn}") for turn in turns}
    return {turn: round(share, 4) for turn, share in shares.items() if share is not None}


def _total(steps: Iterable[StepView], name: str) -> float:
    return sum(step.metrics.get(name, 0.0) for step in steps)


def _weighted(steps: Sequence[Measured], name: str, weight: str) -> float | None:
    pairs = [(step.metrics[name], step.metrics[weight]) for step in steps if {name, weight} <= step.metrics.keys()]
    total = sum(count for _, count in pairs)
    return sum(value * count for value, count in pairs) / total if total else None


def mean_reward(steps: Sequence[Measured]) -> float | None:
    """Mean over all members with a reward of the steps' groups, trained or closed."""
    mean = _weighted(steps, "reward_mean", "rewards")
    return None if mean is None else round(mean, 4)


def _env_metrics(steps: Sequence[StepView]) -> dict[str, dict[str, float]]:
    """Means weighted by each step's number of members with a reward."""
    values: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for step in steps:
        for env, metrics in step.env_metrics.items():
            for name, value in metrics.items():
                values.setdefault(env, {}).setdefault(name, []).append((value, step.metrics.get("rewards", 1.0)))
    return {env: {name: round(_mean(each), 4) for name, each in named.items()} for env, named in values.items()}


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    return sum(value * weight for value, weight in weighted) / (sum(weight for _, weight in weighted) or 1.0)


def _restarts(view: RunView) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for role in view.roles.values():
        counts[role.role] += role.restarts
    return dict(counts)
