from __future__ import annotations

from typing import Any

from headrace.view import SILENT_AFTER_S, RunView
from schemas import Event
from tests import examples
from tests.logs import TIME, logged, unreadable


def view_of(*events: Event | tuple[float, Event]) -> RunView:
    """A view of events, one second apart or at the given offsets."""
    view = RunView("demo")
    for i, each in enumerate(events):
        offset, event = each if isinstance(each, tuple) else (float(i), each)
        view.apply(logged(event, time=TIME + offset, sequence=i + 1))
    return view


def life(state: str, **fields: Any) -> Event:
    return examples.lifecycle(state=state, **{"details": {}, **fields})


def swap(version: int, **fields: Any) -> Event:
    return examples.lifecycle(state="swapped", version=version, **fields)


def test_steps_weights_and_closed_groups_are_folded() -> None:
    view = view_of(examples.step(number=1), examples.weights(version=1), examples.closed(), examples.closed(group=14))
    assert view.committed == 1
    assert view.weights is not None
    assert view.weights.version == 1
    assert dict(view.closed) == {"no_signal": 2}
    assert (view.began_at, view.last_at) == (TIME, TIME + 3)


def test_first_load_of_each_start_is_no_swap() -> None:
    view = view_of(life("started"), swap(0), life("ready"), swap(1), swap(2), life("started"), swap(2), swap(3))
    assert [each.version for each in view.swaps if each.initial] == [0, 2]
    assert [each.version for each in view.swaps if not each.initial] == [1, 2, 3]


def test_swapped_role_is_ready_again() -> None:
    assert view_of(life("started"), swap(3)).roles["generator/gen-0"].state == "ready"


def test_a_start_after_a_death_is_a_restart_and_the_newest_process_shows() -> None:
    role = view_of(life("started", pid=7), life("started", pid=8, note="again")).roles["generator/gen-0"]
    assert (role.restarts, role.pid, role.note) == (1, 8, "again")


def test_a_start_after_an_orderly_end_is_none() -> None:
    role = view_of(life("started", pid=7), life("stopped", pid=7), life("started", pid=8)).roles["generator/gen-0"]
    assert role.restarts == 0


def test_gauges_are_summed_over_a_roles_instances() -> None:
    view = view_of(
        examples.metric(gauges={"running": 3.0}),
        examples.metric(id="gen-1", gauges={"running": 4.0}),
        examples.metric(id="gen-1", gauges={"running": 5.0}),
        examples.metric(role="trainer", id="t", gauges={"running": 100.0}),
    )
    assert view.gauge("generator", "running") == 8.0
    assert view.gauge("generator", "unheard-of") == 0.0


def test_who_says_nothing_is_silent_unless_it_has_stopped() -> None:
    view = view_of(life("started"), life("stopped", role="trainer", id="t"))
    quiet, gone = view.roles["generator/gen-0"], view.roles["trainer/t"]
    assert quiet.silent_for(TIME + SILENT_AFTER_S) is None
    assert quiet.silent_for(TIME + SILENT_AFTER_S + 1) == SILENT_AFTER_S + 1
    assert gone.silent_for(TIME + 1e6) is None
    assert view.alive == [quiet]


def test_pause_resume_and_stop_are_remembered() -> None:
    control = [examples.control(action=action, limit=None) for action in ("pause", "resume", "stop", "pause")]
    states = [view_of(*control[:n]) for n in range(5)]
    assert [view.paused for view in states] == [False, True, False, False, True]
    assert [view.stopped for view in states] == [False, False, False, True, True]


def test_limit_neither_pauses_nor_stops() -> None:
    view = view_of(examples.control(action="limit", limit=3))
    assert not view.paused
    assert not view.stopped


def test_stop_and_later_start_are_told_apart_by_time_not_by_order_of_reading() -> None:
    stop = examples.control(action="stop", limit=None)
    assert (again := view_of((5.0, life("started")), (2.0, stop))).last_start_at > again.stop_asked_at
    assert (ending := view_of((1.0, life("started")), (2.0, stop))).last_start_at < ending.stop_asked_at


def test_dead_letters_are_kept_and_unreadable_messages_passed_over() -> None:
    view = view_of(examples.dead())
    view.apply(unreadable())
    assert len(view.dead) == 1
