"""The simulation: the bound holds, a seed decides everything, and the real code decides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan import Simulation, predict
from schemas import RunError
from tests.headrace.plan.plans import layout, rates, rollouts, simulate


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        layout,
        generators=st.integers(1, 5),
        concurrency=st.integers(8, 64),
        groups_per_step=st.integers(1, 6),
        bound=st.integers(0, 3),
        stale=st.sampled_from(["drop", "mask"]),
    ),
    st.floats(1e-6, 2e-3),
    st.floats(0, 0.6),
    st.floats(0, 20),
    st.integers(0, 2**31),
)
def test_staleness_never_passes_the_bound(
    planned: Any, train_token_s: float, closed_share: float, fetch_s: float, seed: int
) -> None:
    speed = rates(train_token_s=train_token_s, closed_share=closed_share, fetch_s=fetch_s)
    simulated = simulate(planned, speed, rollouts(100, 2000, 0.5, 20), steps=12, seed=seed)
    assert 0 <= simulated.staleness_mean <= simulated.staleness_max <= planned.bound
    for share in (simulated.trainer_idle_share, simulated.generator_idle_share, simulated.stale_share):
        assert 0 <= share <= 1


def test_a_synchronous_run_is_on_policy_and_never_overlaps() -> None:
    planned = layout(bound=0, steps=10)
    simulated = simulate(planned, rates(), rollouts(200))
    tokens = planned.groups_per_step * planned.group_size * 200
    # 32 requests for each generator: commit, fetch and pause, then 200 tokens, then the trainer's work.
    assert simulated.step_s == pytest.approx(0.3 + 200 * (0.02 + 32 * 0.0005) + rates().training_s(tokens))
    assert simulated.staleness_max == 0


def test_one_seed_gives_one_run_and_another_another() -> None:
    def run(seed: int) -> object:
        return simulate(layout(), rates(closed_share=0.2), rollouts(200, 2000, 0.5, 5), steps=15, seed=seed)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_rollouts_that_outlive_the_bound_are_left_out_as_stale() -> None:
    long = rollouts(200, 1000)
    tight, loose = (simulate(layout(bound=bound, generators=4), rates(), long).stale_share for bound in (1, 8))
    assert tight > 0.1
    assert loose < tight / 3


def test_groups_that_teach_nothing_are_played_again() -> None:
    """All of the engines' time is taken, so what is thrown away lengthens a step."""
    all_teach, half = (simulate(layout(), rates(closed_share=share), rollouts(200)) for share in (0.0, 0.5))
    assert half.step_s > 1.5 * all_teach.step_s


def test_a_commit_that_outlasts_a_step_sets_the_pace() -> None:
    slow = rates(commit_s=30.0)
    assert simulate(layout(bound=4, generators=8), slow, rollouts(50)).step_s == pytest.approx(30.0, rel=0.02)
    assert predict(layout(bound=4, generators=8), slow, rollouts(50)).step_s == pytest.approx(30.0, rel=0.02)


def test_the_last_steps_are_committed_too() -> None:
    told: list[int] = []
    simulation = Simulation(layout(steps=7), rates(), rollouts(50))
    simulation.run(told=told.append)
    assert told == [1, 2, 3, 4, 5, 6, 7]


def test_weights_that_come_late_are_waited_for_and_no_more() -> None:
    """Fetching takes longer than a step: generators pass over versions, and the run goes on."""
    simulated = simulate(layout(bound=1), rates(fetch_s=60.0), rollouts(50), steps=10)
    assert simulated.staleness_max == 1
    assert simulated.step_s >= 30


def test_a_generator_without_place_for_a_group_is_refused() -> None:
    with pytest.raises(RunError, match=r"raise generator\.concurrency"):
        Simulation(layout(concurrency=4), rates(), rollouts(50))
