"""What types cannot say: lengths that agree, finite numbers, spans that cover the sampled tokens, bounds.

``validate`` is called by the codec on both sides, so an invalid event is neither sent nor used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .errors import EventInvalid
from .events import (
    Closed,
    Control,
    Evaluated,
    Event,
    GroupTask,
    Lifecycle,
    Metric,
    Played,
    Rollout,
    Step,
    Timings,
    TrainedGroup,
)
from .subjects import subject_of

MAX_ROLLOUT_TOKENS = 1_000_000
"""8 MB of payload at 8 bytes a token: the largest message that NATS advises."""
MAX_GROUP_SIZE = 4096
MAX_TURNS = 100_000
MAX_VERSION = MAX_COUNT = 2**31 - 1
"""Versions of tokens, and what is counted, are kept as int32."""
MAX_NUMBER = 2**53
"""Of a group or an index: readers of JSON keep whole numbers up to here."""
MAX_REWARD, MAX_METRIC, MAX_METRICS, MAX_NAME = 1e6, 1e12, 256, 128
"""Means over such figures are finite, in float32 too, and a step's event stays within a message."""
LEAST_LOGPROB, GREATEST_LOGPROB = -1e4, 1e-3
"""No sampler takes a token below, and sums of differences stay finite. A probability above one means that the numbers
are not log-probabilities; 1e-3 allows for rounding."""
MAX_TIME_S = 1e10
"""Seconds since the epoch that a calendar can show."""
MAX_DATA_DEPTH = 64
"""Levels of a task's ``data``; a stack cannot overflow on the way to an environment."""


def validate(event: Event) -> None:
    """Raise EventInvalid with the first rule that ``event`` breaks."""
    subject_of(event)
    match event:
        case Rollout():
            _check_rollout(event)
        case Evaluated():
            _check_evaluated(event)
        case GroupTask():
            _check_at_most(MAX_GROUP_SIZE, size=event.size)
            _check_at_most(MAX_NUMBER, group=event.group, index=event.index)
            _check_at_most(MAX_VERSION, least_version=event.least_version)
            _check_json(event.task.data)
        case Step():
            _check_step(event)
        case Closed():
            _check_finite(r for r in event.rewards if r is not None)
            _check_figures("metrics", event.metrics)
        case Metric():
            _check_figures("gauges", event.gauges)
        case Lifecycle():
            _check_figures("details", event.details)
        case Control():
            _require((event.limit is not None) == (event.action == "limit"), "limit belongs to action 'limit'")


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise EventInvalid(reason)


def _check_finite(values: Iterable[float]) -> None:
    for value in values:
        _require(math.isfinite(value), f"number {value} is not finite")


def _check_figures(field: str, figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        _require(math.isfinite(value), f"number {value} is not finite: {name!r} of {field}")


def _check_at_most(most: float, **fields: float) -> None:
    for field, value in fields.items():
        _require(value <= most, f"{field} {value} exceeds {most}")


def _check_json(value: Any, depth: int = 0) -> None:
    _require(depth <= MAX_DATA_DEPTH, f"data is nested deeper than {MAX_DATA_DEPTH} levels")
    match value:
        case dict():
            _require(all(isinstance(key, str) for key in value), "data has a key that is not text")
            for inner in value.values():
                _check_json(inner, depth + 1)
        case list() | tuple():
            for inner in value:
                _check_json(inner, depth + 1)
        case float():
            _check_finite([value])
        case _:
            known = value is None or isinstance(value, (bool, int, str))
            _require(known, f"data has a {type(value).__name__}, which is no JSON value")


def _check_rollout(rollout: Rollout) -> None:
    _check_played(rollout)
    _require(rollout.member < MAX_GROUP_SIZE, f"member {rollout.member} is not below {MAX_GROUP_SIZE}")
    _check_at_most(MAX_NUMBER, group=rollout.group)
    _check_at_most(MAX_COUNT, attempt=rollout.attempt, swaps_during=rollout.swaps_during)


def _check_evaluated(evaluated: Evaluated) -> None:
    _check_played(evaluated)
    _check_at_most(MAX_COUNT, version=evaluated.version, task=evaluated.task, sample=evaluated.sample)
    for span in evaluated.spans:
        wanted = span.version == evaluated.version
        _require(wanted, f"version {span.version} sampled tokens in an evaluation of version {evaluated.version}")


def _check_played(played: Played) -> None:
    _require(len(played.tokens) % 4 == 0, "tokens is not a whole number of int32 values")
    _require(len(played.logprobs) % 4 == 0, "logprobs is not a whole number of float32 values")
    n_tokens, n_sampled = len(played.tokens) // 4, len(played.logprobs) // 4
    _require(n_tokens <= MAX_ROLLOUT_TOKENS, f"{n_tokens} tokens exceed {MAX_ROLLOUT_TOKENS}")
    _check_at_most(MAX_NUMBER, index=played.index)
    _require(played.generator.isprintable(), f"generator {played.generator!r} cannot be a header")
    _require(len(played.turns) <= MAX_TURNS, f"{len(played.turns)} turns exceed {MAX_TURNS}")
    _check_at_most(MAX_COUNT, cached=max((turn.cached for turn in played.turns), default=0))
    in_turns = sum(turn.context + turn.sampled for turn in played.turns)
    _require(in_turns == n_tokens, f"turns cover {in_turns} of {n_tokens} tokens")
    in_replies = sum(turn.sampled for turn in played.turns)
    _require(in_replies == n_sampled, f"{n_sampled} logprobs for {in_replies} sampled tokens")
    _check_starts(played)
    _check_spans(played, n_sampled)
    if n_tokens:
        _require(int(played.token_ids().min()) >= 0, "a token id is negative")
    if n_sampled:
        logprobs = played.logprob_values()
        _require(bool(np.isfinite(logprobs).all()), "a logprob is not finite")
        _require(float(logprobs.max()) <= GREATEST_LOGPROB, "a logprob is above 0")
        _require(float(logprobs.min()) >= LEAST_LOGPROB, f"a logprob is below {LEAST_LOGPROB:g}")
    _require((played.reward is None) == (played.error is not None), "exactly one of reward and error is needed")
    _require(played.error is not None or n_sampled > 0, "a rollout with a reward has no sampled token")
    check_outcome(played.reward, played.metrics)
    _check_timings(played.timings)


def check_outcome(reward: float | None, metrics: Mapping[str, float]) -> None:
    """Raise EventInvalid for a reward or metrics, plain numbers by name, that a rollout cannot have."""
    _check_finite([] if reward is None else [reward])
    _check_finite(metrics.values())
    _require(abs(reward or 0.0) <= MAX_REWARD, f"reward {reward} is beyond {MAX_REWARD:g}")
    _require(len(metrics) <= MAX_METRICS, f"{len(metrics)} metrics exceed {MAX_METRICS}")
    for name, value in metrics.items():
        _require(len(name) <= MAX_NAME, f"a metric has a name of {len(name)} characters, more than {MAX_NAME}")
        _require(abs(value) <= MAX_METRIC, f"metric {name!r} is {value}, beyond {MAX_METRIC:g}")


def _check_timings(timings: Timings) -> None:
    _check_finite((timings.started_at, timings.total_s, timings.sampling_s))
    _require(0 <= timings.started_at <= MAX_TIME_S, f"started_at {timings.started_at} is no time of day")
    for duration_s in (timings.total_s, timings.sampling_s):
        _require(abs(duration_s) <= MAX_TIME_S, f"{duration_s} s is no duration")


def _check_starts(played: Played) -> None:
    """A new sequence begins with context: nothing predicts its first token, so that one cannot have been sampled."""
    before = 0
    for turn in played.starts:
        _require(before < turn < len(played.turns), f"a sequence starts at turn {turn} of {len(played.turns)}")
        _require(played.turns[turn].context > 0, f"the sequence that starts at turn {turn} has no context")
        before = turn


def _check_spans(played: Played, n_sampled: int) -> None:
    position, version = 0, -1
    for span in played.spans:
        _require(span.start == position, f"a span starts at {span.start}, expected {position}")
        _require(span.end > span.start, f"the span at {span.start} is empty")
        _require(span.version > version, f"version {span.version} follows version {version}")
        _require(span.version <= MAX_VERSION, f"version {span.version} exceeds {MAX_VERSION}")
        position, version = span.end, span.version
    _require(position == n_sampled, f"spans cover {position} of {n_sampled} sampled tokens")


def _check_step(step: Step) -> None:
    for group in step.groups:
        _check_trained_group(group)
    _check_figures("metrics", step.metrics)
    for env, metrics in step.env_metrics.items():
        _check_figures(f"metrics of {env}", metrics)
    trained = sum(a is not None for group in step.groups for a in group.advantages)
    packed = sorted(i for micro_batch in step.packing for row in micro_batch for i in row)
    # A member whose rollout has several training sequences has as many positions.
    once = len(packed) >= trained and packed == list(range(len(packed)))
    _require(once, f"packing does not hold each of {trained} members once")


def _check_trained_group(group: TrainedGroup) -> None:
    lengths = {len(group.sequences), len(group.rewards), len(group.advantages)}
    _require(len(lengths) == 1, f"group {group.group}: lists differ in length")
    _check_finite(value for value in group.rewards + group.advantages if value is not None)
    without = {str(member) for member, advantage in enumerate(group.advantages) if advantage is None}
    unknown = sorted(set(group.left_out) - without)
    _require(not unknown, f"group {group.group}: left_out names {unknown}, which are not members without an advantage")
