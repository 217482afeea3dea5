"""Rates of a recorded run: from its steps, its swaps, and the timings of its newest rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

import msgspec
import numpy as np

from bus import Bus
from headrace.inquiry import newest
from headrace.summary import timed_steps
from headrace.view import RunView, StepView
from schemas import LEDGER, ROLLOUTS, TELEMETRY, Closed, Lifecycle, Rollout, RunError, Step, Term

from .rates import Floats, Rates, Rollouts

LEAST_STEPS = 4
MOST_ROLLOUTS = 4000
MOST_BYTES = 256 * 1024 * 1024
"""Of the rollouts that are read."""
ALIKE = 0.1
"""Steps whose numbers of tokens differ by less than this, of their mean, don't tell what a step takes without any."""
COMMIT = ("digest_s", "ledger_s", "weights_s")
"""What a commit does before the weights are announced, in a step's metrics."""


class Recorded(msgspec.Struct, frozen=True):
    """What a run says of its rates."""

    rates: Rates
    rollouts: Rollouts
    steps: int
    """From which they were taken."""


class Played(msgspec.Struct, frozen=True):
    """One rollout's times. Seconds."""

    generator: str
    tokens: int
    wait_s: float
    sampling_s: float
    end: float
    """Since the epoch."""


async def recorded(bus: Bus) -> Recorded:
    """Rates of the run on ``bus``. Raises RunError where it is too short, or has no rollouts."""
    ledger = [logged async for logged in bus.read(LEDGER, kinds=(Term, Step))]
    steps = [logged.event for logged in ledger if isinstance(logged.event, Step)]
    view = RunView(bus.run)
    for logged in ledger:
        view.apply(logged)
    timed = timed_steps(view.steps)
    if len(timed) < LEAST_STEPS - 1:
        raise RunError(
            f"run {bus.run!r} has committed {len(steps)} steps, and rates need {LEAST_STEPS} that one trainer took "
            "in a row: let it go on, plan from another run, or give rates by hand (headrace plan --help)"
        )
    closed = [logged.event async for logged in bus.read(LEDGER, kinds=(Closed,))]
    lifecycles = [logged.event async for logged in bus.read(TELEMETRY, kinds=(Lifecycle,))]
    played = await _played(bus)
    pauses, fetches = _swaps([each for each in lifecycles if isinstance(each, Lifecycle)])
    pause_s = median(pauses) if pauses else 0.0
    step_s, train_token_s, commit_s, between_s = _training(timed)
    token_s, request_s = pace(played)
    # A rollout's time with the engine has the pauses in it, and they are counted apart.
    decoding = 1 - min(0.9, pause_s / between_s)
    return Recorded(
        Rates(
            token_s=token_s * decoding,
            request_s=request_s * decoding,
            train_token_s=train_token_s,
            step_s=step_s,
            commit_s=commit_s,
            fetch_s=median(fetches) if fetches else 0.0,
            pause_s=pause_s,
            closed_share=_closed_share(steps, [each for each in closed if isinstance(each, Closed)]),
        ),
        Rollouts(np.array([float(each.tokens) for each in played]), np.array([each.wait_s for each in played])),
        len(steps),
    )


async def _played(bus: Bus) -> list[Played]:
    """The newest rollouts that were played to their end."""
    state = await bus.state(ROLLOUTS)
    count = min(MOST_ROLLOUTS, max(100, MOST_BYTES * state.messages // max(1, state.bytes)))
    events = [logged.event for logged in await newest(bus, ROLLOUTS, count, (Rollout,))]
    played = [
        Played(
            generator=event.generator,
            tokens=event.sampled_tokens,
            wait_s=max(0.0, event.timings.total_s - event.timings.sampling_s),
            sampling_s=event.timings.sampling_s,
            end=event.timings.started_at + event.timings.total_s,
        )
        for event in events
        if isinstance(event, Rollout) and event.error is None and event.sampled_tokens
    ]
    if not played:
        raise RunError(f"run {bus.run!r} has no rollout that was played to its end: give rates by hand")
    return played


def _swaps(lifecycles: Sequence[Lifecycle]) -> tuple[list[float], list[float]]:
    """Pauses and fetches of all swaps; the load at a generator's start is none."""
    pauses, fetches = [], []
    started: set[str] = set()
    for event in lifecycles:
        if event.state == "started":
            started.add(event.id)
        elif event.state == "swapped" and event.id in started:
            started.discard(event.id)
        elif event.state == "swapped":
            pauses.append(event.details.get("pause_s", 0.0))
            fetches.append(event.details.get("prefetch_s", 0.0) + event.details.get("stage_s", 0.0))
    return pauses, fetches


def _training(timed: Sequence[tuple[StepView, float]]) -> tuple[float, float, float, float]:
    """Seconds of a step, of a token, of a commit, and from step to step.

    A run of a Headrace that committed on the trainer's own time has that in its steps.
    """
    metrics = [step.metrics for step, _ in timed]
    tokens = np.array([each["trained_tokens"] for each in metrics])
    # The wait for the commit before is no work: whether there is one follows from the layout.
    train_s = np.array([each["train_s"] - each.get("commit_wait_s", 0.0) for each in metrics])
    between_s = mean(seconds for _, seconds in timed)
    apart_s = max(0.0, between_s - mean(each["wait_s"] + each["train_s"] for each in metrics))
    commit_s = mean(sum(each.get(part, 0.0) for part in COMMIT) for each in metrics)
    step_s, token_s = 0.0, float(train_s.sum() / tokens.sum())
    if tokens.std() > ALIKE * tokens.mean():
        step_s, token_s = line(tokens, train_s, np.ones_like(tokens))
    return step_s + apart_s, token_s, commit_s, between_s


def _closed_share(steps: Sequence[Step], closed: Sequence[Closed]) -> float:
    """Groups that were too old are left out: how many there are follows from the layout."""
    trained = sum(len(step.groups) for step in steps)
    taught_nothing = sum(event.reason != "stale" for event in closed)
    return min(0.95, taught_nothing / max(1, trained + taught_nothing))


def pace(played: Sequence[Played]) -> tuple[float, float]:
    """``token_s`` and ``request_s``: how a token's time with the engine depends on the requests in flight with it.

    A rollout is taken to wait first, and then to sample until its end.
    """
    requests: list[Floats] = []
    seconds: list[Floats] = []
    tokens: list[Floats] = []
    for generator in sorted({each.generator for each in played}):
        own = [each for each in played if each.generator == generator]
        requests.append(in_flight(own))
        seconds.append(np.array([each.sampling_s / each.tokens for each in own]))
        tokens.append(np.array([float(each.tokens) for each in own]))
    return line(np.concatenate(requests), np.concatenate(seconds), np.concatenate(tokens))


def in_flight(played: Sequence[Played]) -> Floats:
    """[N] mean number of requests in flight while each of one generator's rollouts samples, itself included."""
    ends_N = np.array([each.end for each in played])
    starts_N = ends_N - np.maximum(1e-9, [each.sampling_s for each in played])
    times_E = np.concatenate([starts_N, ends_N])
    order_E = np.argsort(times_E, kind="stable")
    times_E = times_E[order_E]
    count_E = np.cumsum(np.where(order_E < len(played), 1, -1))
    seconds_E = np.concatenate([[0.0], np.cumsum(count_E[:-1] * np.diff(times_E))])
    requests_N: Floats = (np.interp(ends_N, times_E, seconds_E) - np.interp(starts_N, times_E, seconds_E)) / (
        ends_N - starts_N
    )
    return requests_N


def line(x_N: Floats, y_N: Floats, weight_N: Floats) -> tuple[float, float]:
    """Intercept and slope of the weighted least squares, neither below zero."""
    total = weight_N.sum()
    x, y = float((weight_N * x_N).sum() / total), float((weight_N * y_N).sum() / total)
    variance = float((weight_N * (x_N - x) ** 2).sum())
    slope = float((weight_N * (x_N - x) * (y_N - y)).sum()) / variance if variance > 0 else 0.0
    if slope <= 0:
        return y, 0.0
    if y - slope * x < 0:
        return 0.0, float((weight_N * x_N * y_N).sum() / (weight_N * x_N**2).sum())
    return y - slope * x, slope
