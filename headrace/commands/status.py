"""``headrace status``: how a run stands, during it and after it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from rich.table import Table

from bus import Bus
from headrace.inquiry import ask
from headrace.readable import number, printable
from headrace.state import RoleState, RunState, run_state, steps_of
from headrace.view import SILENT_AFTER_S

from . import options, output

HELP = {"status": "step, version, queue depth, staleness, and who is alive, with process ids"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(parser, "headrace status demo", "headrace status demo --json | jq .step")
    options.add_run(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    place = options.place_of(arguments)
    steps = steps_of(place.folder)

    async def question(bus: Bus, goes_on: bool) -> RunState:
        return await run_state(bus, goes_on, steps, time.time())

    state = ask(place, question)
    if arguments.json:
        output.print_json(state)
    else:
        _show(state)
    return 0


def _show(state: RunState) -> None:
    console = output.console()
    for label, value in _lines(state):
        console.print(f"{label:14} {value}", soft_wrap=True)
    if state.roles:
        table = Table("role", "state", "weights", "process", "host", "heard", "restarts", box=None, pad_edge=False)
        for role in state.roles:
            table.add_row(*_cells(role))
        console.print()
        console.print(table)


def _lines(state: RunState) -> Iterator[tuple[str, str]]:
    yield "run", f"{state.run} ({state.state})"
    yield "step", f"{state.step} of {'?' if state.steps is None else state.steps}"
    yield "weights", _or_dash(state.version)
    yield "reward", f"{_or_dash(state.reward_last)} (last five steps)"
    for env, metrics in state.metrics.items():
        yield f"  {env}", " ".join(f"{name} {number(value)}" for name, value in metrics.items()) or "-"
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


def _cells(role: RoleState) -> tuple[str, ...]:
    told = role.state if role.alive or role.state == "stopped" else f"gone (was {role.state})"
    note = f" {printable(role.note)}" if role.note else ""
    silent = "SILENT for " if role.silent_s > SILENT_AFTER_S and role.state != "stopped" else ""
    return (
        f"{role.role}/{role.id}",
        told + note,
        _or_dash(role.version),
        str(role.pid),
        printable(role.host),
        f"{silent}{role.silent_s:.0f} s" + ("" if silent else " ago"),
        str(role.restarts),
    )


def _or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)
