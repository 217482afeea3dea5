"""What types cannot say: lengths that agree, finite numbers, spans that cover the sampled tokens, bounds.

``validate`` is called by the codec on both sides, so an invalid event is neither sent nor used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

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
            if (event.limit is not None) != (event.action == "limit"):
                raise EventInvalid("limit belongs to action 'limit'")


def _check_finite(values: Iterable[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise EventInvalid(f"number {value} is not finite")


def _check_figures(field: str, figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        if not math.isfinite(value):
            raise EventInvalid(f"number {value} is not finite: {name!r} of {field}")


def _check_at_most(most: float, **fields: float) -> None:
    for field, value in fields.items():
        if value > most:
            raise EventInvalid(f"{field} {value} exceeds {most}")


def _check_json(value: Any, depth: int = 0) -> None:
    if depth > MAX_DATA_DEPTH:
        raise EventInvalid(f"data is nested deeper than {MAX_DATA_DEPTH} levels")
    match value:
        case dict():
            if not all(isinstance(key, str) for key in value):
                raise EventInvalid("data has a key that is not text")
            for inner in value.values():
                _check_json(inner, depth + 1)
        case list() | tuple():
            for inner in value:
                _check_json(inner, depth + 1)
        case float():
            _check_finite([value])
        case _:
            if value is not None and not isinstance(value, (bool, int, str)):
                raise EventInvalid(f"data has a {type(value).__name__}, which is no JSON value")


def _check_rollout(rollout: Rollout) -> None:
    _check_played(rollout)
    if rollout.member >= MAX_GROUP_SIZE:
        raise EventInvalid(f"member {rollout.member} is not below {MAX_GROUP_SIZE}")
    _check_at_most(MAX_NUMBER, group=rollout.group)
    _check_at_most(MAX_COUNT, attempt=rollout.attempt, swaps_during=rollout.swaps_during)


def _check_evaluated(evaluated: Evaluated) -> None:
    _check_played(evaluated)
    _check_at_most(MAX_COUNT, version=evaluated.version, task=evaluated.task, sample=evaluated.sample)
    for span in evaluated.spans:
        if span.version != evaluated.version:
            raise EventInvalid(f"version {span.version} sampled tokens in an evaluation of version {evaluated.version}")


def _check_played(played: Played) -> None:
    if len(played.tokens) % 4:
        raise EventInvalid("tokens is not a whole number of int32 values")
    if len(played.logprobs) % 4:
        raise EventInvalid("logprobs is not a whole number of float32 values")
    n_tokens, n_sampled = len(played.tokens) // 4, len(played.logprobs) // 4
    _check_at_most(MAX_NUMBER, index=played.index)
    if not played.generator.isprintable():
        raise EventInvalid(f"generator {played.generator!r} cannot be a header")
    _check_turns(played, n_tokens, n_sampled)
    _check_starts(played)
    _check_spans(played, n_sampled)
    if n_tokens and int(np.minimum.reduce(played.token_ids())) < 0:
        raise EventInvalid("a token id is negative")
    if n_sampled:
        _check_logprobs(played.logprob_values())
    if (played.reward is None) != (played.error is not None):
        raise EventInvalid("exactly one of reward and error is needed")
    if played.error is None and not n_sampled:
        raise EventInvalid("a rollout with a reward has no sampled token")
    check_outcome(played.reward, played.metrics)
    _check_timings(played.timings)


def _check_turns(played: Played, n_tokens: int, n_sampled: int) -> None:
    if n_tokens > MAX_ROLLOUT_TOKENS:
        raise EventInvalid(f"{n_tokens} tokens exceed {MAX_ROLLOUT_TOKENS}")
    if len(played.turns) > MAX_TURNS:
        raise EventInvalid(f"{len(played.turns)} turns exceed {MAX_TURNS}")
    in_turns = in_replies = cached = 0
    for turn in played.turns:
        in_turns += turn.context + turn.sampled
        in_replies += turn.sampled
        cached = max(cached, turn.cached)
    _check_at_most(MAX_COUNT, cached=cached)
    if in_turns != n_tokens:
        raise EventInvalid(f"turns cover {in_turns} of {n_tokens} tokens")
    if in_replies != n_sampled:
        raise EventInvalid(f"{n_sampled} logprobs for {in_replies} sampled tokens")


def _check_logprobs(logprobs_S: npt.NDArray[np.float32]) -> None:
    # Both ends of the range in two passes; what is not a number is in no range, for a minimum with it is none either.
    least, greatest = float(np.minimum.reduce(logprobs_S)), float(np.maximum.reduce(logprobs_S))
    if least >= LEAST_LOGPROB and greatest <= GREATEST_LOGPROB:
        return
    if not np.isfinite(logprobs_S).all():
        raise EventInvalid("a logprob is not finite")
    if greatest > GREATEST_LOGPROB:
        raise EventInvalid("a logprob is above 0")
    raise EventInvalid(f"a logprob is below {LEAST_LOGPROB:g}")


def check_outcome(reward: float | None, metrics: Mapping[str, float]) -> None:
    """Raise EventInvalid for a reward or metrics, plain numbers by name, that a rollout cannot have."""
    _check_finite([] if reward is None else [reward])
    _check_finite(metrics.values())
    if abs(reward or 0.0) > MAX_REWARD:
        raise EventInvalid(f"reward {reward} is beyond {MAX_REWARD:g}")
    if len(metrics) > MAX_METRICS:
        raise EventInvalid(f"{len(metrics)} metrics exceed {MAX_METRICS}")
    for name, value in metrics.items():
        if len(name) > MAX_NAME:
            raise EventInvalid(f"a metric has a name of {len(name)} characters, more than {MAX_NAME}")
        if abs(value) > MAX_METRIC:
            raise EventInvalid(f"metric {name!r} is {value}, beyond {MAX_METRIC:g}")


def _check_timings(timings: Timings) -> None:
    _check_finite((timings.started_at, timings.total_s, timings.sampling_s))
    if not 0 <= timings.started_at <= MAX_TIME_S:
        raise EventInvalid(f"started_at {timings.started_at} is no time of day")
    for duration_s in (timings.total_s, timings.sampling_s):
        if abs(duration_s) > MAX_TIME_S:
            raise EventInvalid(f"{duration_s} s is no duration")


def _check_starts(played: Played) -> None:
    """A new sequence begins with context: nothing predicts its first token, so that one cannot have been sampled."""
    before = 0
    for turn in played.starts:
        if not before < turn < len(played.turns):
            raise EventInvalid(f"a sequence starts at turn {turn} of {len(played.turns)}")
        if played.turns[turn].context == 0:
            raise EventInvalid(f"the sequence that starts at turn {turn} has no context")
        before = turn


def _check_spans(played: Played, n_sampled: int) -> None:
    position, version = 0, -1
    for span in played.spans:
        if span.start != position:
            raise EventInvalid(f"a span starts at {span.start}, expected {position}")
        if span.end <= span.start:
            raise EventInvalid(f"the span at {span.start} is empty")
        if span.version <= version:
            raise EventInvalid(f"version {span.version} follows version {version}")
        if span.version > MAX_VERSION:
            raise EventInvalid(f"version {span.version} exceeds {MAX_VERSION}")
        position, version = span.end, span.version
    if position != n_sampled:
        raise EventInvalid(f"spans cover {position} of {n_sampled} sampled tokens")


def _check_step(step: Step) -> None:
    for group in step.groups:
        _check_trained_group(group)
    _check_figures("metrics", step.metrics)
    for env, metrics in step.env_metrics.items():
        _check_figures(f"metrics of {env}", metrics)
    trained = sum(a is not None for group in step.groups for a in group.advantages)
    packed = sorted(i for micro_batch in step.packing for row in micro_batch for i in row)
    # A member whose rollout has several training sequences has as many positions.
    if len(packed) < trained or packed != list(range(len(packed))):
        raise EventInvalid(f"packing does not hold each of {trained} members once")


def _check_trained_group(group: TrainedGroup) -> None:
    lengths = {len(group.sequences), len(group.rewards), len(group.advantages)}
    if len(lengths) != 1:
        raise EventInvalid(f"group {group.group}: lists differ in length")
    _check_finite(value for value in group.rewards + group.advantages if value is not None)
    without = {str(member) for member, advantage in enumerate(group.advantages) if advantage is None}
    unknown = sorted(set(group.left_out) - without)
    if unknown:
        raise EventInvalid(f"group {group.group}: left_out names {unknown}, which are not members without an advantage")
