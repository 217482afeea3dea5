"""The closed form: against the simulation, against a published figure, and as a function."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan import Rates, Rollouts, balance, predict
from schemas import RunError
from tests.headrace.plan.plans import layout, rates, rollouts, simulate

ACCURACY = 0.15
"""Of the step time, and in shares of the time, for every case below; most lie within 0.05."""
THROUGHPUT = 0.2
"""Of trained tokens a second: errors of step time and of what is stale can add up."""
STALENESS = 0.35
"""Of the mean, in steps."""
IN_STEP = "one length"
"""Its rollouts end together, and a hair decides into which step they come."""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Rollouts]] = {
    IN_STEP: ({}, {}, rollouts(200)),
    "one length, trainer bound": ({"generators": 8}, {"train_token_s": 1e-3}, rollouts(200)),
    "log-normal": ({"generators": 4}, {}, rollouts(200, 1000)),
    "log-normal, nearly balanced": ({"generators": 4}, {"train_token_s": 5e-4}, rollouts(200, 1000)),
    "log-normal, trainer bound": ({"generators": 4}, {"train_token_s": 1e-3}, rollouts(200, 1000)),
    "synchronous": ({"bound": 0}, {}, rollouts(200, 2000)),
    "long waits": ({"bound": 4, "concurrency": 512}, {"train_token_s": 5e-4}, rollouts(50, None, 1, 20)),
    "long waits, synchronous": ({"bound": 0, "concurrency": 128}, {}, rollouts(50, None, 1, 20)),
    "heavy tail, drop": ({"bound": 1, "generators": 4}, {}, rollouts(200, 4000)),
    "heavy tail, mask": ({"bound": 1, "generators": 4, "stale": "mask"}, {}, rollouts(200, 4000)),
    "groups that teach nothing": ({}, {"closed_share": 0.4}, rollouts(200, 600)),
    "most groups teach nothing": ({"generators": 4}, {"closed_share": 0.7}, rollouts(200, 600)),
    "compute bound": ({}, {"token_s": 1e-4, "request_s": 1e-3, "train_token_s": 3e-4}, rollouts(200, 600)),
    "few places, compute bound": ({"concurrency": 24}, {"token_s": 0.0, "request_s": 1e-3}, rollouts(200, 600)),
    "fewer groups than generators": ({"generators": 12}, {"train_token_s": 3e-4}, rollouts(200, 600)),
    "few places": ({"bound": 1, "generators": 1, "concurrency": 24}, {}, rollouts(200, 600)),
    "few places, synchronous": ({"bound": 0, "generators": 1, "concurrency": 24}, {}, rollouts(200, 600)),
}


@pytest.mark.parametrize("case", CASES)
def test_closed_form_agrees_with_the_simulation(case: str) -> None:
    changes, speeds, played = CASES[case]
    planned, speed = layout(**changes), rates(**speeds)
    predicted, simulated = predict(planned, speed, played), simulate(planned, speed, played)
    assert predicted.step_s == pytest.approx(simulated.step_s, rel=ACCURACY)
    assert predicted.trainer_idle_share == pytest.approx(simulated.trainer_idle_share, abs=ACCURACY)
    assert predicted.generator_idle_share == pytest.approx(simulated.generator_idle_share, abs=ACCURACY)
    if case != IN_STEP:
        assert predicted.staleness_mean == pytest.approx(simulated.staleness_mean, abs=STALENESS)
    assert predicted.stale_share == pytest.approx(simulated.stale_share, abs=ACCURACY)
    assert predicted.tokens_per_s_trained == pytest.approx(simulated.tokens_per_s_trained, rel=THROUGHPUT)


def published() -> tuple[Rates, Rollouts]:
    """A trainer that consumes 2.75 samples a second, and a generator that makes 1.95 with 8 groups of 8 in play."""
    return Rates(token_s=64 / 1.95, request_s=0.0, train_token_s=1 / 2.75), rollouts(1)


@pytest.mark.parametrize("by", [predict, simulate])
def test_published_rates_leave_the_trainer_idle_for_three_tenths(by: Any) -> None:
    speed, played = published()
    assert by(layout(generators=1), speed, played).trainer_idle_share == pytest.approx(1 - 1.95 / 2.75, abs=0.02)


def test_two_generators_balance_the_published_trainer() -> None:
    speed, played = published()
    assert balance(layout(generators=1), speed, played) == 2


def test_no_number_of_generators_balances_a_synchronous_run() -> None:
    assert balance(layout(bound=0), rates(), rollouts(200)) is None


def test_generators_that_balance_are_the_fewest() -> None:
    planned, speed, played = layout(), rates(train_token_s=1e-3), rollouts(200, 600)
    found = balance(planned, speed, played)
    assert found is not None
    assert found > 1
    for generators, kept_waiting in ((found, False), (found - 1, True)):
        idle = predict(layout(generators=generators), speed, played).trainer_idle_share
        assert (idle > 0.05) == kept_waiting


def test_a_generator_without_place_for_a_group_is_named() -> None:
    with pytest.raises(RunError, match=r"raise generator\.concurrency"):
        predict(layout(concurrency=4), rates(), rollouts(200))


@pytest.mark.parametrize("bound", [0, 2])
def test_groups_that_hardly_ever_teach_make_long_steps(bound: int) -> None:
    one_in_twenty = predict(layout(bound=bound), rates(closed_share=0.95), rollouts(200))
    assert one_in_twenty.step_s > 8 * predict(layout(bound=bound), rates(), rollouts(200)).step_s


LAYOUTS = st.builds(
    layout,
    generators=st.integers(1, 6),
    concurrency=st.integers(8, 96),
    groups_per_step=st.integers(1, 12),
    bound=st.integers(0, 4),
    stale=st.sampled_from(["drop", "mask"]),
)
SPEEDS = st.builds(
    rates,
    token_s=st.floats(1e-4, 0.05),
    request_s=st.floats(0, 2e-3),
    train_token_s=st.floats(1e-6, 2e-3),
    closed_share=st.floats(0, 0.8),
    pause_s=st.floats(0, 1),
)
PLAYED = st.builds(
    lambda tokens, tail, wait_s: rollouts(tokens, tokens * tail, wait_s, wait_s * tail),
    st.floats(1, 500), st.floats(1, 20), st.floats(0, 5),
)  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(LAYOUTS, SPEEDS, PLAYED)
def test_shares_are_shares_and_staleness_is_within_the_bound(planned: Any, speed: Any, played: Any) -> None:
    predicted = predict(planned, speed, played)
    for share in (predicted.trainer_idle_share, predicted.generator_idle_share, predicted.stale_share):
        assert 0 <= share <= 1
    assert 0 <= predicted.staleness_mean <= predicted.staleness_max <= planned.bound
    tokens = planned.groups_per_step * planned.group_size * played.mean_tokens
    assert predicted.step_s >= predicted.tokens_per_s_trained * predicted.step_s * speed.train_token_s * 0.99
    assert predicted.tokens_per_s_trained * predicted.step_s <= tokens * 1.0001


@settings(max_examples=10, deadline=None)
@given(LAYOUTS, SPEEDS, PLAYED)
def test_a_faster_trainer_makes_no_step_longer(planned: Any, speed: Any, played: Any) -> None:
    faster = msgspec.structs.replace(speed, train_token_s=speed.train_token_s / 2)
    assert predict(planned, faster, played).step_s <= 1.1 * predict(planned, speed, played).step_s
