from __future__ import annotations

from typing import Any

from headrace.view import RunView
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


def test_a_role_whose_start_was_dropped_is_ready_and_its_next_swap_is_one() -> None:
    view = view_of(examples.metric(role="generator", id="gen-0", version=7), swap(8))
    assert view.roles["generator/gen-0"].state == "ready"
    assert [each.initial for each in view.swaps] == [False]


def test_swapped_role_is_ready_again() -> None:
    assert view_of(life("started"), swap(3)).roles["generator/gen-0"].state == "ready"


def test_a_start_after_a_death_is_a_restart_and_the_newest_process_shows() -> None:
    role = view_of(life("started", pid=7), life("started", pid=8, note="again")).roles["generator/gen-0"]
    assert (role.restarts, role.pid, role.note) == (1, 8, "again")


def test_a_start_after_an_orderly_end_is_none() -> None:
    role = view_of(life("started", pid=7), life("stopped", pid=7), life("started", pid=8)).roles["generator/gen-0"]
    assert role.restarts == 0


def test_a_start_after_an_error_is_a_restart() -> None:
    ended = life("stopped", pid=7, note="EngineError: the engine core has died")
    late = examples.metric(note="")  # Its last gauges are in another stream.
    role = view_of(life("started", pid=7), ended, late, life("started", pid=8)).roles["generator/gen-0"]
    assert role.restarts == 1


def test_gauges_are_summed_over_a_roles_instances() -> None:
    view = view_of(
        examples.metric(gauges={"running": 3.0}),
        examples.metric(id="gen-1", gauges={"running": 4.0}),
        examples.metric(id="gen-1", gauges={"running": 5.0}),
        examples.metric(role="trainer", id="t", gauges={"running": 100.0}),
    )
    assert view.gauge("generator", "running") == 8.0
    assert view.gauge("generator", "unheard-of") == 0.0


def test_gauges_of_those_that_have_stopped_count_only_where_nobody_came_after_them() -> None:
    view = view_of(
        examples.metric(role="dispatcher", id="a", gauges={"groups_open": 3.0}),
        examples.lifecycle(role="dispatcher", id="a", state="stopped", details={}),
    )
    assert view.gauge("dispatcher", "groups_open") == 3.0
    view.apply(logged(examples.metric(role="dispatcher", id="b", gauges={"groups_open": 5.0})))
    assert view.gauge("dispatcher", "groups_open") == 5.0


def test_gauges_of_those_that_were_killed_count_only_where_nobody_came_after_them() -> None:
    view = view_of(
        (0.0, examples.metric(role="dispatcher", id="a", gauges={"groups_open": 3.0})),
        (3600.0, examples.metric(role="trainer", id="t", gauges={})),
    )
    assert view.gauge("dispatcher", "groups_open") == 3.0
    view.apply(logged(examples.metric(role="dispatcher", id="b", gauges={"groups_open": 5.0}), time=TIME + 3601.0))
    assert view.gauge("dispatcher", "groups_open") == 5.0


def test_who_says_nothing_is_silent_unless_it_has_stopped() -> None:
    view = view_of(life("started"), life("stopped", role="trainer", id="t"))
    quiet, gone = view.roles["generator/gen-0"], view.roles["trainer/t"]
    after_s = view.silent_after_s
    assert view.silent_for(quiet, TIME + after_s) is None
    assert view.silent_for(quiet, TIME + after_s + 1) == after_s + 1
    assert view.silent_for(gone, TIME + 1e6) is None
    assert view.alive == [quiet]


def test_who_has_missed_some_heartbeats_of_the_run_is_silent() -> None:
    views = [RunView("demo", interval_s) for interval_s in (0.5, 2.0)]
    for view in views:
        view.apply(logged(life("ready"), time=TIME))
    assert [view.silent_for(view.roles["generator/gen-0"], TIME + 10) for view in views] == [10, None]


def test_nobody_is_silent_before_there_was_time_to_be_heard() -> None:
    view = view_of(life("ready"))
    role = view.roles["generator/gen-0"]
    view.listening_since = TIME + 1000
    assert view.silent_for(role, TIME + 1000 + view.silent_after_s) is None
    assert view.silent_for(role, TIME + 1001 + view.silent_after_s) == 1001 + view.silent_after_s


def test_note_is_what_holds_a_role_up_now() -> None:
    full = examples.metric(note="the stream is full")
    assert view_of(life("ready"), full).roles["generator/gen-0"].note == "the stream is full"
    assert view_of(life("ready"), full, examples.metric()).roles["generator/gen-0"].note == ""


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


def test_the_end_of_a_process_is_not_that_of_the_one_which_took_its_place() -> None:
    view = RunView("demo")
    for pid, state in ((1, "started"), (2, "started"), (2, "ready"), (1, "stopped")):
        event = examples.lifecycle(role="trainer", id="trainer", pid=pid, host="mill", state=state)
        view.apply(logged(event))
    (trainer,) = view.of_role("trainer")
    assert (trainer.pid, trainer.state) == (2, "ready")
