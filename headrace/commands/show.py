"""``headrace show``: one rollout with the version of each token, a group's members, or what one step trained."""

from __future__ import annotations

import argparse
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from bus import Bus, Logged
from environments import Tokenizer, load_tokenizer
from headrace.config import FILE_NAME, stored
from headrace.folder import RunFolder
from headrace.inquiry import ask
from headrace.lookup import find_group, find_member, find_step
from headrace.readable import describe, rollout_text, step_text
from schemas import ConfigError, Rollout, Step, as_json

from . import options, output

HELP = {"show": "one rollout: text with the version of each token; or one step: what it trained"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(
        parser,
        "headrace show demo 12/3     member 3 of group 12",
        "headrace show demo 12/      the members of group 12",
        "headrace show demo 5        step 5; step-5 is the same",
    )
    options.add_run(parser)
    parser.add_argument("id", type=_finder, metavar="ID", help="GROUP/MEMBER, GROUP/ or STEP")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="directory with the tokenizer (default: the run's model.path)"
    )
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    place = options.place_of(arguments)
    find: _Finder = arguments.id

    async def question(bus: Bus, goes_on: bool) -> list[Logged]:
        return await find(bus)

    found = ask(place, question)
    if arguments.json:
        for logged in found:
            assert logged.event is not None
            print(as_json(logged.event, logged.headers).decode())
    else:
        _print(found, arguments.model, place.folder)
    return 0


_Finder = Callable[[Bus], Awaitable[list[Logged]]]


def _finder(text: str) -> _Finder:
    """What ID asks for. Raises ArgumentTypeError where it asks for nothing."""
    if match := re.fullmatch(r"g?(\d+)/(\d*)", text):
        group, member = match.groups()
        return lambda bus: (
            find_group(bus, int(group)) if not member else _one(find_member(bus, int(group), int(member)))
        )
    if match := re.fullmatch(r"(?:step-)?(\d+)", text):
        number = int(match[1])
        return lambda bus: _one(find_step(bus, number))
    raise argparse.ArgumentTypeError(f"{text!r} is neither GROUP/MEMBER (12/3), GROUP/ (12/) nor STEP (5)")


async def _one(logged: Awaitable[Logged]) -> list[Logged]:
    return [await logged]


def _print(found: list[Logged], model: Path | None, folder: RunFolder) -> None:
    console = output.console()
    match [logged.event for logged in found]:
        case [Step() as step]:
            console.print(step_text(step))
        case [Rollout() as rollout]:
            console.print(rollout_text(rollout, _tokenizer(model, folder)))
        case _:
            for logged in found:
                console.print(describe(logged), soft_wrap=True)


def _tokenizer(model: Path | None, folder: RunFolder) -> Tokenizer:
    if model is None:
        if not (folder.path / FILE_NAME).exists():
            raise ConfigError(
                f"the model of run {folder.name!r} is not known here: give a directory with its tokenizer "
                "with --model DIR, or take --json"
            )
        model = Path(stored(folder.path).model.path)
    return load_tokenizer(model)
