from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from headrace.evaluations import Plan
from headrace.progress import HEARTBEAT_S, Progress, figures, roles_line, step_line
from headrace.silence import Silence, moment
from headrace.view import RunView
from schemas import EvaluationSettings, Span
from tests import examples
from tests.headrace.recorded import METRICS, events
from tests.logs import TIME, logged


def view_of(committed: int = 2) -> RunView:
    view = RunView("demo")
    for event in events("demo", committed):
        view.apply(logged(event))
    return view


class Screen(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True


def console_of(*, terminal: bool = False) -> Console:
    return Console(file=Screen() if terminal else io.StringIO(), width=200, force_terminal=terminal, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Clock:
    now = TIME

    def __call__(self) -> float:
        return self.now


def test_line_of_a_step_has_reward_staleness_times_and_the_last_swap() -> None:
    line = step_line(view_of(), 2, 70)
    assert line == (
        "step   2/70  reward 0.500 exact 0.25  staleness 1.25  held 4  tokens 36"
        "  waited 0.5 s  trained 0.2 s  swap v2 300 ms"
    )


def test_figures_of_an_empty_run_are_dashes() -> None:
    shown = dict(figures(RunView("demo"), []))
    assert shown["reward"] == shown["weights"] == shown["staleness"] == shown["last swap"] == "-"
    assert shown["roles"] == "none"


def test_figures_show_queue_rates_idle_shares_and_dead_letters() -> None:
    shown = dict(figures(view_of(), []))
    assert shown["queue"] == "7 groups open, 4 rollouts held"
    assert shown["tokens/s"].startswith("10 generated")
    assert shown["idle"].startswith("generators 25 %")
    assert shown["last swap"] == "v2 300 ms"
    assert shown["dead letters"] == "1"


def silence(who: str = "trainer/t") -> Silence:
    return Silence(who=who, pid=42, since=TIME, why="it was stopped")


def evaluating() -> RunView:
    view = view_of()
    view.plan = Plan(EvaluationSettings(every_steps=2, tasks=2), ["reverse"], 9)
    view.apply(logged(examples.weights(version=2)))
    return view


def test_figures_show_how_far_the_evaluation_is() -> None:
    assert "evaluation" not in dict(figures(view_of(), []))
    view = evaluating()
    for version, task, shown in [
        (0, 0, "v0: 1 of 2"),
        (0, 1, "v2: 0 of 2"),
        (2, 0, "v2: 1 of 2"),
        (2, 1, "v2: 2 of 2"),
    ]:
        view.apply(logged(examples.evaluated(task=task, sample=0, version=version, spans=[Span(version, 0, 4)])))
        assert dict(figures(view, []))["evaluation"] == f"{shown} plays"


def test_an_evaluation_is_told_once_when_it_is_whole() -> None:
    view, console = evaluating(), console_of()
    progress = Progress(view, 70, console, Clock())
    for task in (0, 1):
        progress.update()
        assert "evaluation reverse" not in written(console)
        view.apply(logged(examples.evaluated(task=task, sample=0, version=0, spans=[Span(0, 0, 4)])))
    progress.update()
    progress.update()
    assert written(console).count("evaluation reverse v0: 2 of 2 tasks, reward 1 [0.3424, 1] (wilson)") == 1


def test_silent_role_is_named_first_with_its_last_sign() -> None:
    line = roles_line(view_of(), [silence()])
    assert line.startswith(f"trainer/t SILENT since {moment(TIME)}, dispatcher/d ")
    assert "SILENT" not in roles_line(view_of(), [])


def test_what_holds_a_role_up_is_said_with_it() -> None:
    view = view_of()
    view.roles["generator/gen-0"].note = "publishing rollout.v1: the stream is full"
    assert "generator/gen-0 ready (publishing rollout.v1: the stream is full)" in roles_line(view, [])


class Run:
    """Progress without a terminal, second by second; ``heard`` is who gives a sign of life in each of them."""

    def __init__(self) -> None:
        self.clock, self.console, self.view = Clock(), console_of(), RunView("demo", interval_s=1.0)
        self.server: Silence | None = None
        self.progress = Progress(self.view, 3, self.console, self.clock, lambda now: self.server)

    def go_on(self, seconds: int, heard: Sequence[str] = ("gen-0", "gen-1"), update: bool = True) -> None:
        for _ in range(seconds):
            self.clock.now += 1
            for id in heard:
                self.view.apply(logged(examples.metric(id=id), time=self.clock.now))
            if update:
                self.progress.update()

    def said(self) -> list[str]:
        return [line for line in written(self.console).splitlines() if not line.startswith("step ")]


def test_who_becomes_silent_and_who_is_back_is_said_once() -> None:
    run = Run()
    run.go_on(5)
    run.go_on(20, heard=["gen-1"])
    run.go_on(5)
    assert run.said() == [
        f"generator/gen-0 is silent since {moment(TIME + 5)} (8 s)",
        "generator/gen-0 is no longer silent, after 21 s",
    ]


def test_while_the_server_is_silent_it_alone_is_named_and_then_all_may_be_heard_again() -> None:
    run = Run()
    run.go_on(5)
    run.server = silence("nats-server")
    run.go_on(20, heard=[])
    run.server = None
    run.go_on(5, heard=[])
    run.go_on(5)
    assert run.said() == [
        f"nats-server (process 42) is silent since {moment(TIME)} (6 s): it was stopped",
        "nats-server is no longer silent, after 26 s",
    ]


def test_when_up_itself_did_not_run_it_says_so_and_accuses_nobody() -> None:
    run = Run()
    run.go_on(5)
    run.go_on(100, heard=[], update=False)
    run.go_on(5, heard=[])
    run.go_on(5)
    assert run.said() == ["headrace up did not run for 101 s"]


def test_each_step_is_told_once_without_a_terminal() -> None:
    view, console = view_of(0), console_of()
    with Progress(view, 3, console, Clock()) as progress:
        for number in (1, 2):
            view.apply(logged(examples.step(number=number, metrics=METRICS)))
        progress.update()
        progress.update()
    steps = [line for line in written(console).splitlines() if line.startswith("step   ")]
    assert [line[:10] for line in steps] == ["step   1/3", "step   2/3"]


def test_steps_of_an_earlier_start_are_not_told_again() -> None:
    console = console_of()
    with Progress(view_of(2), 3, console, Clock()) as progress:
        progress.update()
    assert "step   1/3" not in written(console)


def test_heartbeat_comes_while_no_step_is_committed() -> None:
    console, clock = console_of(), Clock()
    with Progress(view_of(1), 3, console, clock) as progress:
        for seconds in (0.0, HEARTBEAT_S - 1, 1.0, 1.0):
            clock.now += seconds
            progress.update()
    beats = [line for line in written(console).splitlines() if line.startswith("step 1  queue: ")]
    assert len(beats) == 2


def test_terminal_gets_one_table_that_is_redrawn() -> None:
    console = console_of(terminal=True)
    with Progress(view_of(), 4, console, Clock()) as progress:
        progress.update()
    text = written(console)
    assert "demo: step 2 of 4" in text
    assert "7 groups open" in text


@pytest.mark.parametrize(
    ("file", "variables"), [(io.StringIO(), {"FORCE_COLOR": "1"}), (Screen(), {"TERM": "dumb"})], ids=["file", "dumb"]
)
def test_plain_lines_where_nothing_can_be_drawn_anew(file: io.StringIO, variables: dict[str, str]) -> None:
    console = Console(file=file, width=200, color_system=None, _environ=variables)
    assert console.is_terminal
    with Progress(view_of(), 4, console, Clock()) as progress:
        progress.update()
        assert "7 groups open" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_what_is_said_is_no_markup() -> None:
    console = console_of()
    with Progress(view_of(), 4, console, Clock()) as progress:
        progress.say("[red]generator-0[/red] ended")
    assert "[red]generator-0[/red] ended" in written(console)


def test_a_line_stays_one_line_however_narrow_the_log_is() -> None:
    console = Console(file=io.StringIO(), width=40)
    with Progress(view_of(2), 3, console, Clock()) as progress:
        progress.say("word " * 20)
    assert len(written(console).splitlines()) == 1
