"""``headrace topology apply | show``: make a run's streams, or see how they are."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from bus import ApiError, Bus, run_streams, stream_config
from headrace import config as configuration
from headrace.config import RunConfig
from headrace.folder import RunFolder, find_run
from headrace.inquiry import NO_STREAM, Place, ask
from headrace.server import URL, address_from_environment
from schemas import StreamMismatch, StreamSpec

from . import options, output

HELP = {"topology": "create or verify a run's streams"}


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """One stream on the server; without figures where it does not exist."""

    name: str
    subjects: list[str]
    max_bytes: int
    """As the configuration wants it."""
    exists: bool = False
    messages: int = 0
    bytes: int = 0
    first_sequence: int = 0
    last_sequence: int = 0


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    examples = {
        "apply": ["headrace topology apply configs/demo.toml --server nats://127.0.0.1:4222"],
        "show": ["headrace topology show demo", "headrace topology show configs/demo.toml --server URL --json"],
    }
    options.example(parser, *(line for lines in examples.values() for line in lines))
    actions = parser.add_subparsers(dest="action", required=True, metavar="apply | show")
    about = {
        "apply": "make the streams, or bring their settings up to date",
        "show": "what they hold, and what differs",
    }
    for action, lines in examples.items():
        subparser = actions.add_parser(action, help=about[action])
        options.example(subparser, *lines)
        subparser.add_argument("target", metavar="CONFIG | RUN", help="a configuration file, or the name of a run")
        options.add_overrides(subparser)
        options.add_dir(subparser)
        options.add_server(subparser)
        options.add_json(subparser)


def run(arguments: argparse.Namespace) -> int:
    config = _config(arguments)
    place = _place(config, arguments)
    return _apply(place, config, arguments) if arguments.action == "apply" else _show(place, config, arguments)


def _config(arguments: argparse.Namespace) -> RunConfig:
    target = arguments.target
    if target.endswith(".toml") or Path(target).is_file():
        return configuration.load(target, arguments.overrides)
    path = find_run(target, arguments.dir).path / configuration.FILE_NAME
    return configuration.load(path, arguments.overrides)


def _place(config: RunConfig, arguments: argparse.Namespace) -> Place:
    folder = RunFolder(arguments.dir / config.run.name)
    url = arguments.server or os.environ.get(URL)
    if url is None and not folder.exists:
        address_from_environment()  # raises: neither a server nor a run's own
    return Place(config.run.name, folder, url)


def _apply(place: Place, config: RunConfig, arguments: argparse.Namespace) -> int:
    async def question(bus: Bus, goes_on: bool) -> list[str]:
        return await bus.apply_topology(config.log, config.weights)

    done = ask(place, question, role="topology")
    if arguments.json:
        output.print_json({"run": place.run, "done": done})
    else:
        for line in done or [f"the streams of run {place.run} are as they should be"]:
            print(line)
    return 0


def _show(place: Place, config: RunConfig, arguments: argparse.Namespace) -> int:
    """Raises StreamMismatch, after everything was printed, where the streams are not as configured."""

    async def question(bus: Bus, goes_on: bool) -> tuple[list[StreamLine], StreamMismatch | None]:
        lines = [
            await _line(bus, spec, stream_config(spec, bus.run, config.log, config.weights))
            for spec in run_streams(config.weights)
        ]
        try:
            await bus.verify_topology(config.log, config.weights)
        except StreamMismatch as error:
            return lines, error
        return lines, None

    lines, fault = ask(place, question)
    if arguments.json:
        shown: dict[str, Any] = {"run": place.run, "streams": lines, "fault": None if fault is None else str(fault)}
        output.print_json(shown)
    else:
        _print(lines)
    if fault is not None:
        raise fault
    return 0


async def _line(bus: Bus, spec: StreamSpec, wanted: dict[str, Any]) -> StreamLine:
    line = StreamLine(name=wanted["name"], subjects=wanted["subjects"], max_bytes=wanted["max_bytes"])
    try:
        state = await bus.state(spec)
    except ApiError as error:
        if error.fault.err_code != NO_STREAM:
            raise
        return line
    return msgspec.structs.replace(
        line,
        exists=True,
        messages=state.messages,
        bytes=state.bytes,
        first_sequence=state.first_sequence,
        last_sequence=state.last_sequence,
    )


def _print(lines: list[StreamLine]) -> None:
    table = Table("stream", "messages", "sequences", "MiB", "limit MiB", "subjects", box=None, pad_edge=False)
    for line in lines:
        figures = (
            (str(line.messages), f"{line.first_sequence}-{line.last_sequence}", f"{line.bytes / 1024**2:.2f}")
            if line.exists
            else ("missing", "-", "-")
        )
        table.add_row(line.name, *figures, f"{line.max_bytes / 1024**2:.0f}", " ".join(line.subjects))
    output.console().print(table)
