from __future__ import annotations

from typing import Any, Literal

import pytest

from headrace.evaluations import Plan
from headrace.folder import RunFolder
from headrace.state import RunPhase, RunState, phase, state_of, steps_of
from headrace.view import RunView
from schemas import EvaluationSettings, Event, Role
from tests import examples
from tests.headrace.recorded import STEPS, events
from tests.logs import TIME, logged


def state(*log: Event, goes_on: bool = True, now: float = TIME, steps: int | None = 10) -> RunState:
    view = RunView("demo")
    for i, event in enumerate(log):
        view.apply(logged(event, time=TIME + i / 1000))
    return state_of(view, goes_on=goes_on, steps=steps, now=now, tasks=2, rollouts=6)


def test_run_without_events_has_nulls_for_what_nobody_knows() -> None:
    empty = state()
    assert (empty.step, empty.version, empty.reward_last, empty.staleness_mean, empty.last_swap) == (0, *[None] * 4)
    assert empty.roles == []


def test_state_has_what_the_log_says() -> None:
    found = state(*events("demo", 2), examples.weights(version=2))
    assert (found.state, found.step, found.version, found.reward_last) == ("running", 2, 2, 0.5)
    assert (found.groups_open, found.rollouts_held, found.dead_letters) == (7, 4, 1)
    assert (found.tasks_published, found.rollouts_published) == (2, 6)
    assert (found.staleness_mean, found.staleness_max) == (1.25, 2)
    assert found.last_swap is not None
    assert (found.last_swap.version, found.last_swap.pause_ms) == (2, 300.0)
    assert found.generator_idle_share == 0.25


def test_a_log_that_fills_up_is_said() -> None:
    def with_gauges(used: float) -> RunState:
        return state(examples.metric(role="trainer", gauges={"log_used": used, "log_steps_left": 4.0}))

    assert with_gauges(0.79).log_scarce is None
    scarce = with_gauges(0.85).log_scarce
    assert scarce is not None
    assert "85 % of its limit: about 4 more steps fit" in scarce


@pytest.mark.parametrize(
    ("step", "goes_on", "paused", "stopped", "expected"),
    [
        (3, True, False, False, "running"),
        (3, True, True, False, "paused"),
        (3, True, True, True, "stopping"),
        (3, False, True, True, "interrupted"),
        (10, True, True, True, "finished"),
        (10, False, False, False, "finished"),
    ],
)
def test_phase_follows_from_steps_and_from_what_was_asked(
    step: int, goes_on: bool, paused: bool, stopped: bool, expected: RunPhase
) -> None:
    assert phase(step=step, steps=10, goes_on=goes_on, paused=paused, stopped=stopped) == expected


@pytest.mark.parametrize(
    ("goes_on", "stopped", "expected"),
    [(True, False, "evaluating"), (True, True, "stopping"), (False, False, "interrupted")],
)
def test_a_run_whose_last_version_is_not_evaluated_is_not_finished(
    goes_on: bool, stopped: bool, expected: RunPhase
) -> None:
    assert phase(step=10, steps=10, goes_on=goes_on, stopped=stopped, to_play=3) == expected


def test_stop_counts_until_something_starts_again() -> None:
    stop, start = examples.control(action="stop", limit=None), examples.lifecycle(state="started", details={})
    assert state(start, stop).stopped
    assert state(start, stop).state == "stopping"
    assert not state(start, stop, start).stopped


def test_a_run_on_a_server_of_others_too_has_ended_when_all_but_its_sinks_have() -> None:
    def life(role: Role, state: Literal["ready", "stopped"]) -> Event:
        return examples.lifecycle(role=role, id="a", state=state, details={})

    stop = examples.control(action="stop", limit=None)
    some = [life("trainer", "stopped"), life("sink", "ready")]
    assert state(life("generator", "ready"), stop, *some).state == "stopping"
    assert state(life("generator", "stopped"), stop, *some).state == "interrupted"
    assert state(*some).state == "interrupted"


def test_alive_is_who_has_not_stopped_was_heard_and_whose_run_goes_on() -> None:
    def alive(**how: object) -> dict[str, bool]:
        return {role.role: role.alive for role in state(*events("demo", 2), **how).roles}  # type: ignore[arg-type]

    assert alive() == {"generator": True, "dispatcher": True, "trainer": False}
    assert alive(goes_on=False) == {"generator": False, "dispatcher": False, "trainer": False}
    late = TIME + RunView("demo").silent_after_s + 1
    assert alive(now=late) == {"generator": False, "dispatcher": False, "trainer": False}


def test_who_is_silent_is_said_while_the_run_goes_on() -> None:
    late = TIME + RunView("demo").silent_after_s + 1
    assert [silence.who for silence in state(*events("demo", 2), now=late).silent] == [
        "dispatcher/d", "generator/gen-0",
    ]  # fmt: skip
    assert state(*events("demo", 2), now=late, goes_on=False).silent == []


def test_an_evaluation_that_nobody_plays_is_said() -> None:
    """Only ``headrace up`` calls its generators 0, 1, ...; others are called after their machine."""

    def waits(*log: Event, **how: Any) -> str | None:
        view = RunView("demo")
        view.plan = Plan(EvaluationSettings(every_steps=2, tasks=4), ["reverse"], 10)
        for event in log:
            view.apply(logged(event))
        return state_of(
            view, **{"goes_on": True, "steps": 10, "now": TIME, "tasks": 2, "rollouts": 6} | how
        ).evaluation_waits

    zero = examples.lifecycle(id="0", state="ready", details={})
    assert waits(examples.weights(version=0)) == (
        "no generator is called '0' (evaluation.generator): start one with headrace generate --id 0"
    )
    assert waits(examples.weights(version=0), zero) is None
    assert waits(examples.weights(version=0), goes_on=False) is None
    assert waits() is None, "nothing is due before there are weights"


def test_steps_are_those_of_the_configuration_that_is_here(ended: RunFolder) -> None:
    assert steps_of(ended) == STEPS
    assert steps_of(RunFolder(ended.path.parent / "elsewhere")) is None
