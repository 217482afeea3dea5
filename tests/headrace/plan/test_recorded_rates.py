"""Rates from a recorded run: each from the events that say it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bus import Bus, Logged
from headrace.inquiry import Place, ask
from headrace.plan import Recorded, recorded
from headrace.plan.recorded import Played, in_flight, line, pace
from headrace.summary import timed_steps
from headrace.view import RunView
from schemas import Event, RunError, Timings
from tests import examples
from tests.headrace.recorded import add, prepare

METRICS = {
    "wait_s": 0.0, "trained_tokens": 40.0, "train_s": 0.3, "commit_wait_s": 0.1, "digest_s": 0.5, "ledger_s": 0.25,
    "weights_s": 1.0, "checkpoint_s": 9.0,
}  # fmt: skip


def measured(parent: Path, log: list[Event]) -> Recorded:
    folder = prepare(parent, "demo")
    add(folder, log)

    async def question(bus: Bus, goes_on: bool) -> Recorded:
        return await recorded(bus)

    return ask(Place("demo", folder), question)


def swapped(version: int, pause_s: float) -> Event:
    details = {"pause_s": pause_s, "prefetch_s": 0.25, "stage_s": 0.05}
    return examples.lifecycle(run="demo", version=version, details=details)


def test_rates_are_those_of_the_log(tmp_path: Path) -> None:
    timings = Timings(started_at=100.0, total_s=3.0, sampling_s=1.0)
    log = [
        examples.lifecycle(run="demo", state="started", version=None, details={}),
        swapped(0, 9.0),
        *(examples.rollout(run="demo", group=group, timings=timings) for group in range(6)),
        *(examples.closed(run="demo", group=group, reason="no_signal") for group in range(4)),
        *(examples.closed(run="demo", group=group, reason="stale") for group in range(4, 8)),
        *(examples.step(run="demo", number=number, metrics=METRICS) for number in range(1, 7)),
        *(swapped(version, 1e-6) for version in range(1, 4)),
    ]
    found = measured(tmp_path, log)
    trained = 6 * len(examples.step().groups)
    assert found.steps == 6
    assert found.rates.train_token_s == pytest.approx(0.2 / 40)
    assert found.rates.commit_s == 1.75
    assert found.rates.fetch_s == 0.3
    assert found.rates.pause_s == 1e-6
    assert found.rates.closed_share == pytest.approx(4 / (trained + 4))
    assert found.rollouts.waits_s.tolist() == pytest.approx([2.0] * 6)
    assert found.rollouts.tokens.tolist() == [examples.rollout().sampled_tokens] * 6


def test_a_run_that_is_too_short_is_refused(tmp_path: Path) -> None:
    log = [examples.step(run="demo", number=number, metrics=METRICS) for number in range(1, 3)]
    with pytest.raises(RunError, match="has committed 2 steps, and rates need 4 that one trainer took"):
        measured(tmp_path, log)


def logged(event: Event, time: float) -> Logged:
    return Logged(sequence=1, time=time, subject="", headers={}, payload=b"", event=event, invalid=None)


def test_time_in_which_no_trainer_ran_is_none_of_a_step() -> None:
    steps = [examples.step(number=number) for number in range(1, 6)]
    term = examples.term()
    day = 86400.0
    ledger = [(term, 0.0), (steps[0], 5.0), (steps[1], 6.0), (term, day), (term, 2 * day), (steps[2], 2 * day + 9),
              (steps[3], 2 * day + 11), (steps[4], 2 * day + 14)]  # fmt: skip
    view = RunView("demo")
    for each in ledger:
        view.apply(logged(*each))
    timed = timed_steps(view.steps)
    assert [(step.number, seconds) for step, seconds in timed] == [(2, 1.0), (4, 2.0), (5, 3.0)]


def test_requests_in_flight_are_the_mean_over_a_rollouts_life() -> None:
    def played(begin: float, end: float) -> Played:
        return Played(generator="0", tokens=1, wait_s=0.0, sampling_s=end - begin, end=end)

    # The first is alone for half of its 4 s; the second for none of its 2 s; the third for all of its 1 s.
    assert in_flight([played(0, 4), played(1, 3), played(10, 11)]).tolist() == pytest.approx([1.5, 2.0, 1.0])


def test_pace_is_found_from_batches_of_different_sizes() -> None:
    log = []
    for round, together in enumerate((1, 2, 4, 8, 16)):
        sampling_s = 50 * (0.01 + 0.002 * together)
        begin = 1000.0 * round
        log += [Played(generator="0", tokens=50, wait_s=0.0, sampling_s=sampling_s, end=begin + sampling_s)] * together
    assert pace(log) == pytest.approx((0.01, 0.002))


def test_a_line_never_has_a_part_below_zero() -> None:
    x, ones = np.array([1.0, 2.0, 3.0]), np.ones(3)
    assert line(x, np.array([3.0, 5.0, 7.0]), ones) == pytest.approx((1.0, 2.0))
    assert line(x, np.array([3.0, 2.0, 1.0]), ones) == pytest.approx((2.0, 0.0))
    assert line(x, np.array([1.0, 3.0, 5.0]), ones) == pytest.approx((0.0, 22 / 14))
