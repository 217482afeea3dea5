"""Hypothesis strategies for valid rollouts."""

from __future__ import annotations

from hypothesis import strategies as st

from schemas import Failure, Rollout, Span, Timings, Turn
from schemas.validation import MAX_METRIC, MAX_REWARD, MAX_TIME_S
from tests.examples import packed_logprobs, packed_tokens

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
rewards = st.floats(-MAX_REWARD, MAX_REWARD)
figures = st.floats(-MAX_METRIC, MAX_METRIC)
times = st.floats(0, MAX_TIME_S)
durations = st.floats(-MAX_TIME_S, MAX_TIME_S)
counts = st.integers(0, 2**31 - 1)
short = st.integers(0, 6)
failures = st.builds(Failure, kind=st.sampled_from(["timeout", "stale", "environment"]), message=st.text(max_size=40))
turns = st.builds(Turn, short, short, counts, st.sampled_from(["stop", "length"]))
timings = st.builds(Timings, started_at=times, total_s=durations, sampling_s=durations)


@st.composite
def spans(draw: st.DrawFn, length: int) -> list[Span]:
    """Spans that cover 0 to ``length`` under versions that grow."""
    found: list[Span] = []
    start, version = 0, -1
    while start < length:
        end = draw(st.integers(start + 1, length))
        version = draw(st.integers(version + 1, version + 5))
        found.append(Span(version=version, start=start, end=end))
        start = end
    return found


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    played = draw(st.lists(turns, max_size=5))
    n_tokens = sum(turn.context + turn.sampled for turn in played)
    n_sampled = sum(turn.sampled for turn in played)
    error = draw(failures if n_sampled == 0 else st.none() | failures)
    may_start = [i for i, turn in enumerate(played) if i and turn.context]
    starts = draw(st.lists(st.sampled_from(may_start), unique=True) if may_start else st.just([]))
    logprobs = st.floats(-100, 0, width=32)
    return Rollout(
        run=draw(names),
        group=draw(counts),
        member=draw(st.integers(0, 4095)),
        env=draw(names),
        index=draw(counts),
        generator=draw(names),
        attempt=draw(st.integers(1, 9)),
        tokens=packed_tokens(draw(st.lists(counts, min_size=n_tokens, max_size=n_tokens))),
        logprobs=packed_logprobs(draw(st.lists(logprobs, min_size=n_sampled, max_size=n_sampled))),
        turns=played,
        starts=sorted(starts),
        spans=draw(spans(n_sampled)),
        reward=draw(rewards) if error is None else None,
        timings=draw(timings),
        metrics=draw(st.dictionaries(st.text(max_size=8), figures, max_size=3)),
        error=error,
        swaps_during=draw(counts),
    )
