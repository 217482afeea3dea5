"""``headrace show``: one rollout with the version of each token, a group's members, or what one step trained."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from bus import Bus, Logged
from environments import Tokenizer, load_tokenizer
from headrace.config import FILE_NAME, stored
from headrace.folder import RunFolder
from headrace.inquiry import ask
from headrace.lookup import fate_of, find_group, find_member, find_step
from headrace.pages import group_text, rollout_text, step_text
from schemas import Closed, ConfigError, Rollout, Step, as_json

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
    parser.add_argument("id", type=_asked, metavar="ID", help="GROUP/MEMBER, GROUP/ or STEP")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="directory with the tokenizer (default: the run's model.path)"
    )
    options.add_json(parser)


class _Asked(NamedTuple):
    """What ID names: a step, a group, or a member of a group."""

    step: int | None = None
    group: int = 0
    member: int | None = None

    async def find(self, bus: Bus) -> list[Logged]:
        if self.step is not None:
            return [await find_step(bus, self.step)]
        if self.member is not None:
            return [await find_member(bus, self.group, self.member)]
        return await find_group(bus, self.group)


def _asked(text: str) -> _Asked:
    """Raises ArgumentTypeError where ID names nothing."""
    if match := re.fullmatch(r"g?(\d+)/(\d+)", text):
        return _Asked(group=int(match[1]), member=int(match[2]))
    if match := re.fullmatch(r"g?(\d+)/|g(\d+)", text):
        return _Asked(group=int(match[1] or match[2]))
    if match := re.fullmatch(r"(?:step-)?(\d+)", text):
        return _Asked(step=int(match[1]))
    raise argparse.ArgumentTypeError(f"{text!r} is neither GROUP/MEMBER (12/3), GROUP/ (12/) nor STEP (5)")


def run(arguments: argparse.Namespace) -> int:
    place = options.place_of(arguments)
    asked: _Asked = arguments.id

    async def question(bus: Bus, goes_on: bool) -> tuple[list[Logged], Step | Closed | None]:
        found = await asked.find(bus)
        return found, None if asked.step is not None else await fate_of(bus, asked.group)

    found, fate = ask(place, question)
    if arguments.json:
        for logged in found:
            assert logged.event is not None
            print(as_json(logged.event, logged.headers).decode())
        return 0
    console = output.console()
    match found[0].event:
        case Step():
            console.print(step_text(found[0]))
        case Rollout() as rollout if asked.member is not None:
            console.print(rollout_text(rollout, _tokenizer(arguments.model, place.folder), fate))
        case _:
            console.print(group_text(found, fate))
    return 0


def _tokenizer(model: Path | None, folder: RunFolder) -> Tokenizer:
    if model is None:
        if not (folder.path / FILE_NAME).exists():
            raise ConfigError(
                f"the model of run {folder.name!r} is not known here: give a directory with its tokenizer "
                "with --model DIR, or take --json"
            )
        model = Path(stored(folder.path).model.path)
    return load_tokenizer(model)
