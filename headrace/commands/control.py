"""``headrace pause | resume | stop``: what a person asks of a run, as an event in its log."""

from __future__ import annotations

import argparse
import getpass
import re

from bus import Bus
from headrace.inquiry import ask
from schemas import Control, RunError

from . import options, output

HELP = {
    "pause": "issue no further groups until resume; what is in play is finished and trained",
    "resume": "go on with a paused run",
    "stop": "end a run that is going on; headrace up goes on with it later",
}
DONE = {
    "pause": "is paused: no further group is issued until headrace resume",
    "resume": "is resumed",
    "stop": "was asked to stop; headrace status shows when it has",
}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    lines = [f"headrace {name} demo", f"headrace {name} demo --server nats://127.0.0.1:4222"]
    if name == "pause":
        parser.add_argument(
            "--limit", type=_positive, metavar="N",
            help="do not pause, but let at most N groups be open at once from now on; a great N lifts the limit",
        )  # fmt: skip
        lines.append("headrace pause demo --limit 16")
    options.example(parser, *lines)
    options.add_run(parser)
    options.add_json(parser)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    name, action, limit = arguments.run, arguments.command, getattr(arguments, "limit", None)
    if limit is not None:
        action = "limit"
    user = _user()
    control = Control(run=name, action=action, limit=limit, by=user)

    async def command(bus: Bus, goes_on: bool) -> int:
        if action == "stop" and not goes_on:
            raise RunError(f"run {name!r} is not going on: there is nothing to stop")
        return (await bus.publish(control, deadline_s=10.0)).sequence

    sequence = ask(options.place_of(arguments), command, role="operator", id=user)
    if arguments.json:
        output.print_json({"run": name, "action": action, "limit": limit, "sequence": sequence})
    elif limit is not None:
        print(f"run {name} has at most {limit} groups open at once from now on")
    else:
        print(f"run {name} {DONE[action]}")
    return 0


def _user() -> str:
    """Who asks, in letters that a connection's id may have."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name, as in a container
        name = ""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("-_")[:64] or "someone"
