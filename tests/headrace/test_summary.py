from __future__ import annotations

from typing import Any

import pytest

from headrace.summary import generator_idle_share, summarize, swap_line, tokens_per_s_generated, trainer_idle_share
from headrace.view import RunView, SwapView
from tests import examples
from tests.logs import TIME, logged

METRICS = {
    "reward_mean": 0.5, "rewards": 10.0, "staleness_max": 1.0, "staleness_mean": 1.0, "trained_tokens": 100.0,
    "rollouts_trained": 8.0, "rollouts_of_several_versions": 2.0, "wait_s": 2.0, "train_s": 1.0,
}  # fmt: skip


def view_of(*steps: dict[str, Any]) -> RunView:
    """A run that began at TIME, with one step every 10 s; each dict replaces metrics."""
    view = RunView("demo")
    view.apply(logged(examples.lifecycle(state="started", details={}), time=TIME))
    for i, metrics in enumerate(steps, start=1):
        env = {"reverse": {"exact": i / 10}}
        step = examples.step(number=i, metrics=METRICS | metrics, env_metrics=env, left_out={"stale": 1, "error": i})
        view.apply(logged(step, time=TIME + 10 * i))
    return view


def swap(view: RunView, pause_s: float) -> None:
    view.apply(logged(examples.lifecycle(details={"pause_s": pause_s})))


def test_run_without_a_step_has_a_summary_of_nothing() -> None:
    summary = summarize(RunView("demo"), rollouts_published=0)
    assert (summary.steps, summary.wall_s, summary.reward_first, summary.reward_last) == (0, 0.0, None, None)
    assert summary.swap_pause_ms_p50 is None
    assert summary.logprob_gap_mean is None


def test_rewards_are_means_over_five_steps_at_each_end_weighted_by_members() -> None:
    steps = [{"reward_mean": float(i), "rewards": 1.0} for i in range(10)]
    steps[0]["rewards"] = 6.0
    summary = summarize(view_of(*steps), rollouts_published=99)
    assert summary.reward_first == 1.0
    assert summary.reward_last == 7.0
    assert summary.metrics_first == {"reverse": {"exact": 0.2}}
    assert summary.metrics == {"reverse": {"exact": 0.8}}
    assert (summary.rollouts_published, summary.rollouts_trained, summary.wall_s) == (99, 80, 100.0)


def test_step_without_any_reward_counts_for_nothing() -> None:
    view = view_of({"reward_mean": 0.25}, {})
    del view.steps[1].metrics["reward_mean"]
    assert summarize(view, rollouts_published=0).reward_last == 0.25


def test_cached_shares_are_weighted_by_prompt_tokens_and_prefix_breaks_are_summed() -> None:
    view = view_of(
        {"prompt_tokens_turn_1": 100.0, "cached_share_turn_1": 0.5, "prefix_breaks": 2.0},
        {"prompt_tokens_turn_1": 300.0, "cached_share_turn_1": 0.1, "prompt_tokens_turn_2": 10.0,
         "cached_share_turn_2": 0.9, "prefix_breaks": 1.0},
        {},
    )  # fmt: skip
    summary = summarize(view, rollouts_published=0)
    assert summary.cached_share == {"turn_1": 0.2, "turn_2": 0.9}
    assert summary.prefix_breaks == 3
    assert summarize(view_of({}), rollouts_published=0).cached_share == {}


def test_staleness_is_weighted_by_tokens_and_its_maximum_is_of_the_run() -> None:
    view = view_of(
        {"staleness_mean": 2.0, "staleness_max": 2.0, "trained_tokens": 300.0},
        {"staleness_mean": 0.0, "staleness_max": 0.0, "trained_tokens": 100.0},
    )
    summary = summarize(view, rollouts_published=0)
    assert (summary.staleness_mean, summary.staleness_max) == (1.5, 2)


def test_logprob_gap_is_of_the_steps_that_measured_one() -> None:
    measured = {"logprob_gap_mean": 1e-4, "logprob_gap_tokens": 10.0, "logprob_gap_max": 5e-4}
    summary = summarize(view_of({}, measured), rollouts_published=0)
    assert summary.logprob_gap_mean == pytest.approx(1e-4)
    assert summary.logprob_gap_max == pytest.approx(5e-4)


def test_what_was_left_out_is_summed_by_reason() -> None:
    assert summarize(view_of({}, {}, {}), rollouts_published=0).left_out == {"stale": 3, "error": 6}


def test_first_load_counts_as_no_swap() -> None:
    view = view_of({})
    for pause_s in (9.0, 0.1, 0.3, 0.2):  # the first one follows a start
        swap(view, pause_s)
    summary = summarize(view, rollouts_published=0)
    assert (summary.swaps, summary.swap_pause_ms_p50, summary.swap_pause_ms_max) == (3, 200.0, 300.0)


def test_idle_of_the_trainer_leaves_out_the_wait_for_the_engines() -> None:
    view = view_of({"wait_s": 9.0}, {"wait_s": 2.0}, {"wait_s": 3.0})
    assert trainer_idle_share(view.steps) == 0.25
    assert trainer_idle_share(view.steps[:1]) == 0.0


def test_idle_and_rate_of_generators_are_over_the_time_they_were_ready() -> None:
    view = view_of()
    view.apply(logged(examples.metric(gauges={"ready_s": 10.0, "busy_s": 5.0, "sampled_tokens": 100.0})))
    view.apply(logged(examples.metric(id="gen-1", gauges={"ready_s": 30.0, "busy_s": 25.0, "sampled_tokens": 60.0})))
    view.apply(logged(examples.metric(id="gen-2", gauges={"ready_s": 0.0, "busy_s": 0.0, "sampled_tokens": 0.0})))
    assert generator_idle_share(view) == 0.25
    assert tokens_per_s_generated(view) == 160.0 / 30.0


def test_generators_that_took_the_places_of_others_are_not_counted_as_if_they_had_worked_beside_them() -> None:
    view, gauges = view_of(), {"ready_s": 100.0, "busy_s": 50.0, "sampled_tokens": 1000.0}
    for number in range(4):
        view.apply(logged(examples.metric(id=f"host-{number}", gauges=gauges), time=TIME + 100 * (number // 2)))
    assert tokens_per_s_generated(view) == 20.0


def test_the_time_in_which_a_run_was_stopped_is_in_no_rate() -> None:
    view = view_of({"wait_s": 9.0}, {"wait_s": 2.0})
    view.apply(logged(examples.term()))
    for number, at in ((3, 50_000.0), (4, 50_010.0)):
        view.apply(logged(examples.step(number=number, metrics=METRICS | {"wait_s": 3.0}), time=TIME + at))
    assert trainer_idle_share(view.steps) == 0.25
    assert summarize(view, rollouts_published=0).tokens_per_s_trained == 10.0


def test_trained_tokens_per_second_are_between_first_and_last_step() -> None:
    assert summarize(view_of({}, {}, {}), rollouts_published=0).tokens_per_s_trained == 10.0


def test_restarts_are_counted_by_role() -> None:
    view = view_of()
    for _ in range(2):
        view.apply(logged(examples.lifecycle(state="started", details={})))
    view.apply(logged(examples.lifecycle(role="trainer", id="t", state="started", details={})))
    assert summarize(view, rollouts_published=0).restarts == {"generator": 2, "trainer": 0}


def test_swap_has_a_line() -> None:
    event = SwapView(generator="gen-0", version=7, at=TIME, details={"pause_s": 0.1234}, initial=False)
    assert swap_line(event) == "v7 123 ms"
