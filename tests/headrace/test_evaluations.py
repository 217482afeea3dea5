"""The fold of evaluation events, and what it says."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.config import load
from headrace.evaluations import Evaluations, Plan, plan_of, score_line
from headrace.view import RunView
from schemas import Evaluated, EvaluationSettings, Span
from tests import examples
from tests.headrace.test_config import DEMO
from tests.logs import logged

PLAN = Plan(EvaluationSettings(every_steps=4, tasks=3, samples=2), ["reverse"], 10)


def play(task: int, sample: int, reward: float | None = 1.0, version: int = 4, **fields: Any) -> Evaluated:
    if reward is None:
        return examples.failed_evaluated(task=task, sample=sample, version=version, **fields)
    values = {"reward": reward, "metrics": {"exact": float(reward >= 1)}, "spans": [Span(version, 0, 4)]}
    return examples.evaluated(task=task, sample=sample, version=version, **(values | fields))


def folded(*events: Evaluated) -> Evaluations:
    evaluations = Evaluations()
    for event in events:
        evaluations.take(event)
    return evaluations


def test_due_are_version_0_every_kth_and_the_last_as_far_as_they_are_announced() -> None:
    assert PLAN.due(None) == []
    assert PLAN.due(0) == [0]
    assert PLAN.due(9) == [0, 4, 8]
    assert PLAN.due(10) == [0, 4, 8, 10]


def test_nothing_is_planned_where_evaluation_is_off_and_all_environments_where_none_is_named() -> None:
    assert plan_of(load(DEMO)) is None
    plan = plan_of(load(DEMO, ["evaluation.every_steps=5"]))
    assert plan is not None
    assert (plan.environments, plan.steps, plan.plays) == (["reverse"], 70, 100)


def test_a_score_has_mean_interval_and_pass_at_k() -> None:
    rewards = {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 0.0, (1, 1): 0.0, (2, 0): 1.0, (2, 1): 1.0}
    [score] = folded(*(play(*at, reward) for at, reward in rewards.items())).scores(PLAN, None)
    assert (score.env, score.version, score.tasks, score.tasks_due, score.plays, score.errors) == (
        "reverse", 4, 3, 3, 6, 0,
    )  # fmt: skip
    assert score.reward is not None
    assert (score.reward.mean, score.reward.method) == (0.5, "wilson")
    assert score.metrics["exact"] == score.reward
    assert score.pass_at == {"1": 0.5, "2": 0.6667}


def test_a_failed_play_counts_as_played_and_for_no_figure() -> None:
    score = folded(play(0, 0), play(0, 1, None), play(1, 0, None)).score("reverse", 4, PLAN)
    assert (score.tasks, score.plays, score.errors) == (1, 3, 2)
    assert score.reward is not None
    assert score.reward.mean == 1.0
    assert score.pass_at == {"1": 1.0}


def test_of_two_plays_with_one_identity_the_first_in_the_log_counts() -> None:
    score = folded(play(0, 0, 0.0), play(0, 0, 1.0)).score("reverse", 4, PLAN)
    assert (score.plays, score.reward and score.reward.mean) == (1, 0.0)


def test_what_is_enough_to_pass_is_the_configuration_s() -> None:
    lenient = Plan(EvaluationSettings(every_steps=4, tasks=3, samples=1, pass_reward=0.5), ["reverse"], 10)
    assert folded(play(0, 0, 0.75)).score("reverse", 4, PLAN).pass_at == {"1": 0.0}
    assert folded(play(0, 0, 0.75)).score("reverse", 4, lenient).pass_at == {"1": 1.0}


def test_what_is_due_and_was_not_begun_is_shown_and_counted_as_missing() -> None:
    evaluations = folded(play(0, 0))
    assert [(score.version, score.plays) for score in evaluations.scores(PLAN, 8)] == [(0, 0), (4, 1), (8, 0)]
    assert (evaluations.missing(PLAN, 4), evaluations.missing(PLAN, 8)) == (5, 6)
    assert score_line(evaluations.score("reverse", 8, PLAN)) == "reverse v8: 0 of 3 tasks"


def test_without_a_configuration_only_what_was_played_is_known() -> None:
    [score] = folded(play(0, 0), play(0, 1), play(1, 0)).scores(None, 8)
    assert (score.tasks, score.tasks_due) == (1, None)
    assert set(score.pass_at) == {"1", "2"}


def test_a_line_says_it_all() -> None:
    line = score_line(folded(play(0, 0), play(0, 1, 0.0), play(1, 0, None)).score("reverse", 4, PLAN))
    assert line == (
        "reverse v4: 1 of 3 tasks, reward 0.5 [0.0546, 0.9454] (wilson), exact 0.5 [0.0546, 0.9454] (wilson), "
        "pass@1 0.5, pass@2 1, 1 of 3 plays failed"
    )


def test_the_view_knows_what_the_last_version_lacks() -> None:
    view = RunView("demo")
    assert view.evaluation_left == 0
    view.plan = PLAN
    assert view.evaluation_left == 6
    view.apply(logged(examples.weights(version=10)))
    view.apply(logged(play(0, 0, version=10)))
    assert view.evaluation_left == 5
    assert [score.version for score in view.scores] == [0, 4, 8, 10]


@given(st.permutations([(task, sample) for task in range(3) for sample in range(2)]), st.integers(0, 6))
def test_the_order_of_plays_does_not_matter(order: list[tuple[int, int]], count: int) -> None:
    plays = [play(task, sample, float(task > sample)) for task, sample in order[:count]]
    assert folded(*plays).score("reverse", 4, PLAN) == folded(*sorted(plays, key=lambda e: (e.task, e.sample))).score(
        "reverse", 4, PLAN
    )
