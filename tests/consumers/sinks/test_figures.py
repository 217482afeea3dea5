from __future__ import annotations

from consumers.sinks.figures import FAMILIES, Figures
from schemas import Event, Failure, Span, stream_for
from tests import examples
from tests.logs import TIME, logged, unreadable


def figures_of(*events: Event) -> dict[tuple[str, ...], float]:
    """Sample name and label values (without the run) to value."""
    figures = Figures("demo")
    for sequence, event in enumerate(events, start=1):
        figures.take(stream_for(event).kind, logged(event, sequence=sequence))
    return samples(figures)


def samples(figures: Figures) -> dict[tuple[str, ...], float]:
    found = {}
    for family in figures.families():
        for sample in family.samples:
            assert sample.labels["run"] == "demo"
            labels = [value for name, value in sample.labels.items() if name != "run"]
            found[sample.name.removeprefix("headrace_"), *labels] = sample.value
    return found


def test_rollouts_are_counted_by_environment_and_outcome() -> None:
    stale = examples.rollout(reward=None, error=Failure(kind="stale", message=""), metrics={})
    found = figures_of(examples.rollout(), examples.rollout(reward=0.25), examples.rollout(env="guess"), stale)
    assert found["rollouts_total", "reverse", "reward"] == 2
    assert found["rollouts_total", "guess", "reward"] == 1
    assert found["rollouts_total", "reverse", "stale"] == 1
    assert found["sampled_tokens_total", "reverse"] == 18
    assert found["cached_tokens_total", "reverse"] == 27


def test_rewards_and_times_have_sum_and_count() -> None:
    found = figures_of(examples.rollout(reward=0.75), examples.rollout(reward=0.25), examples.failed_rollout())
    assert (found["rollout_reward_count", "reverse"], found["rollout_reward_sum", "reverse"]) == (2, 1.0)
    assert (found["rollout_seconds_count", "reverse"], found["rollout_seconds_sum", "reverse"]) == (3, 4.5)
    assert found["rollout_sampling_seconds_sum", "reverse"] == 3.75


def test_held_out_plays_are_summed_by_version() -> None:
    later = examples.evaluated(version=8, spans=[Span(version=8, start=0, end=4)])
    found = figures_of(examples.evaluated(), examples.evaluated(reward=0.5), later, examples.failed_evaluated())
    assert found["evaluation_plays_total", "reverse", "reward"] == 3
    assert found["evaluation_plays_total", "reverse", "environment"] == 1
    assert (found["evaluation_reward_count", "reverse", "4"], found["evaluation_reward_sum", "reverse", "4"]) == (
        2,
        1.5,
    )
    assert found["evaluation_reward_sum", "reverse", "8"] == 1.0
    assert "rollouts_total" not in {name for name, *_ in found}


def test_step_sets_what_is_newest_and_adds_what_was_left_out() -> None:
    found = figures_of(examples.step(number=4, metrics={"loss": 9.0}), examples.step(number=5))
    assert found["step",] == 5
    assert found["step_time_seconds",] == TIME
    assert found["step_metric", "loss"] == -0.01
    assert found["env_metric", "reverse", "exact"] == 0.25
    assert found["groups_trained_total", "reverse"] == 2
    assert found["left_out_rollouts_total", "stale"] == 2
    assert found["left_out_tokens_total", "stale"] == 12


def test_what_the_newest_step_does_not_say_is_not_shown() -> None:
    older = examples.step(number=4, metrics={"loss": 9.0, "logprob_gap_mean": 0.5}, env_metrics={"guess": {"win": 1.0}})
    found = figures_of(older, examples.step(number=5, metrics={"loss": 2.0}, env_metrics={"reverse": {"exact": 0.5}}))
    assert {key for key in found if key[0] in ("step_metric", "env_metric")} == {
        ("step_metric", "loss"), ("env_metric", "reverse", "exact")
    }  # fmt: skip


def test_groups_are_counted_from_issue_to_close() -> None:
    found = figures_of(examples.task(), examples.task(group=13), examples.closed(), examples.closed(reason="stale"))
    assert found["groups_issued_total", "reverse"] == 2
    assert found["groups_closed_total", "reverse", "no_signal"] == 1
    assert found["groups_closed_total", "reverse", "stale"] == 1


def test_swaps_have_their_pauses_and_roles_their_version() -> None:
    found = figures_of(
        examples.lifecycle(state="started", version=None, details={}),
        examples.lifecycle(),
        examples.lifecycle(version=6, details={"pause_s": 0.3}),
    )
    assert found["starts_total", "generator", "gen-0"] == 1
    assert found["swaps_total", "gen-0"] == 2
    assert (found["swap_pause_seconds_count", "gen-0"], found["swap_pause_seconds_sum", "gen-0"]) == (2, 0.4)
    assert found["role_version", "generator", "gen-0"] == 6


def test_role_is_up_until_it_says_that_it_stopped() -> None:
    started = examples.lifecycle(state="started", version=None, details={})
    assert figures_of(started)["up", "generator", "gen-0"] == 1
    assert figures_of(started, examples.lifecycle(state="stopped"))["up", "generator", "gen-0"] == 0


def test_gauges_of_a_role_are_the_last_it_sent() -> None:
    found = figures_of(examples.metric(gauges={"running": 3.0, "old": 1.0}), examples.metric())
    assert found["role_gauge", "generator", "gen-0", "running"] == 64
    assert found["role_gauge", "generator", "gen-0", "old"] == 1
    assert found["heartbeat_time_seconds", "generator", "gen-0"] == TIME


def test_weights_and_dead_letters_are_shown() -> None:
    found = figures_of(examples.weights(), examples.dead(), examples.dead(stream="TASKS"))
    assert (found["weights_version",], found["weights_bytes",]) == (5, 2_400_000)
    assert found["dead_letters_total", "ROLLOUTS"] == found["dead_letters_total", "TASKS"] == 1


def test_unreadable_message_is_counted_and_moves_the_position() -> None:
    figures = Figures("demo")
    figures.take("ROLLOUTS", logged(examples.rollout(), sequence=7))
    figures.take("ROLLOUTS", unreadable(sequence=8))
    found = samples(figures)
    assert found["log_sequence", "ROLLOUTS"] == 8
    assert found["log_invalid_total", "ROLLOUTS"] == 1


def test_every_family_has_an_event_that_fills_it() -> None:
    figures = Figures("demo")
    for event in [*examples.every_event(), examples.lifecycle(state="started")]:
        figures.take(stream_for(event).kind, logged(event))
    figures.take("ROLLOUTS", unreadable())
    assert [family.name for family in figures.families()] == [f"headrace_{name}" for name in FAMILIES]


def test_the_same_log_gives_the_same_figures() -> None:
    assert figures_of(*examples.every_event()) == figures_of(*examples.every_event())
