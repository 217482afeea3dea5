"""``headrace runs``: the runs in a folder, with state, step and reward."""

from __future__ import annotations

import argparse

from rich.table import Table

from bus import Bus
from headrace.configured import config_of
from headrace.folder import RunFolder, all_runs
from headrace.inquiry import Place, ask
from headrace.readable import number, printable
from headrace.state import RunLine, run_line
from schemas import HeadraceError

from . import options, output

HELP = {"runs": "the runs here, with state, step and reward"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(parser, "headrace runs", "headrace runs --dir /data/runs --json")
    options.add_dir(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    lines = [line_of(folder) for folder in all_runs(arguments.dir)]
    if arguments.json:
        output.print_json(lines)
    elif not lines:
        print(f"there is no run in {arguments.dir}: headrace up CONFIG starts one, --dir names another folder")
    else:
        _show(lines)
    return 0


def line_of(folder: RunFolder) -> RunLine:
    """How a run stands; one that cannot be read does not hide the others."""
    try:
        config = config_of(folder)

        async def question(bus: Bus, goes_on: bool) -> RunLine:
            return await run_line(bus, goes_on, config)

        return ask(Place(folder.name, folder), question)
    except (HeadraceError, OSError) as error:
        return RunLine(run=folder.name, state="unreadable", step=0, steps=None, reward_last=None, note=str(error))


def _show(lines: list[RunLine]) -> None:
    table = Table("run", "state", "step", "reward", "", box=None, pad_edge=False)
    for line in lines:
        step = "-" if line.steps is None else f"{line.step}/{line.steps}"
        reward = "-" if line.reward_last is None else number(line.reward_last)
        table.add_row(line.run, line.state, step, reward, printable(line.note))
    output.console().print(table)
