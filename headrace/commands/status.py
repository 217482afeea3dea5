"""``headrace status``: how a run stands, during it and after it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import msgspec
from rich.table import Table

from bus import Bus
from headrace.evaluations import score_line
from headrace.folder import RunFolder
from headrace.inquiry import ask
from headrace.readable import number, printable
from headrace.silence import ServerSilent, server_without_disk, words
from headrace.state import RoleState, RunState, UnansweredState, run_state, steps_of

from . import options, output

HELP = {"status": "step, version, queue depth, staleness, and who is alive, with process ids"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(parser, "headrace status demo", "headrace status demo --json | jq .step")
    options.add_run(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    place = options.place_of(arguments)

    async def question(bus: Bus, goes_on: bool) -> RunState:
        return await run_state(bus, goes_on, place)

    try:
        state = ask(place, question)
    except ServerSilent as error:
        if not arguments.json:
            raise
        steps = steps_of(place.folder)
        output.print_json(UnansweredState(run=place.run, steps=steps, silent=[error.silence]))
        return 1
    if place.url is None and state.silent:
        state = _with_full_disk(state, place.folder)
    if arguments.json:
        output.print_json(state)
    else:
        _show(state)
    return 0


def _with_full_disk(state: RunState, folder: RunFolder) -> RunState:
    """Where the server cannot store heartbeats, it alone is to blame."""
    server = server_without_disk(folder, time.time())
    return state if server is None else msgspec.structs.replace(state, silent=[server])


def _show(state: RunState) -> None:
    console = output.console()
    now = time.time()
    for label, value in _lines(state):
        console.print(f"{label:14} {value}", soft_wrap=True)
    for silence in state.silent:
        console.print(f"{'SILENT':14} {printable(words(silence, now))}", soft_wrap=True)
    if state.roles:
        table = Table("role", "state", "weights", "process", "host", "heard", "restarts", box=None, pad_edge=False)
        silent = {silence.who for silence in state.silent}
        for role in state.roles:
            table.add_row(*_cells(role, f"{role.role}/{role.id}" in silent))
        console.print()
        console.print(table)


def _lines(state: RunState) -> Iterator[tuple[str, str]]:
    yield "run", f"{state.run} ({state.state})"
    yield "step", f"{state.step} of {'?' if state.steps is None else state.steps}"
    yield "weights", _or_dash(state.version)
    yield "reward", f"{_or_dash(state.reward_last)} (last five steps)"
    for env, metrics in state.metrics.items():
        yield f"  {env}", " ".join(f"{name} {number(value)}" for name, value in metrics.items()) or "-"
    for score in state.evaluations:
        yield "evaluation", score_line(score)
    if state.evaluation_waits is not None:
        yield "evaluation", f"waits: {state.evaluation_waits}"
    yield "staleness", f"mean {_or_dash(state.staleness_mean)}, max {_or_dash(state.staleness_max)} (last step)"
    yield "queue", f"{state.groups_open} groups open, {state.rollouts_held} rollouts held by the trainer"
    yield "published", f"{state.tasks_published} tasks, {state.rollouts_published} rollouts"
    yield "tokens/s", f"{state.tokens_per_s_generated:.0f} generated, {state.tokens_per_s_trained:.0f} trained"
    generators, trainer = 100 * state.generator_idle_share, 100 * state.trainer_idle_share
    yield "idle", f"generators {generators:.0f} %, trainer {trainer:.0f} %"
    swap = state.last_swap
    yield "last swap", "-" if swap is None else f"v{swap.version} on {swap.generator}, {swap.pause_ms:.0f} ms"
    yield "paused", "yes: headrace resume goes on with it" if state.paused else "no"
    yield "dead letters", f"{state.dead_letters}"
    if state.log_scarce is not None:
        yield "log", state.log_scarce


def _cells(role: RoleState, silent: bool) -> tuple[str, ...]:
    told = (
        role.state if role.alive or role.state == "stopped" else f"{'silent' if silent else 'gone'} (was {role.state})"
    )
    note = f" {printable(role.note)}" if role.note else ""
    return (
        f"{role.role}/{role.id}",
        told + note,
        _or_dash(role.version),
        str(role.pid),
        printable(role.host),
        f"{role.silent_s:.0f} s ago",
        str(role.restarts),
    )


def _or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)
