"""``headrace keys new``: credentials for each role, and what a server lets each do with them."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.table import Table

from bus import make_keys

from . import options, output

HELP = {"keys": "credentials for each role on a server of your own"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    example = "headrace keys new deploy/keys --run demo"
    options.example(parser, example)
    actions = parser.add_subparsers(dest="action", required=True, metavar="new")
    about = "a key for each role, those that are there kept, and the users of the server, anew"
    subparser = actions.add_parser("new", help=about, description=about)
    options.example(subparser, example, "headrace keys new deploy/keys --run demo --run guess --json")
    subparser.add_argument("folder", type=Path, metavar="DIR", help="where they go; it becomes its owner's alone")
    subparser.add_argument(
        "--run", action="append", required=True, metavar="NAME", dest="runs",
        help="a run that the roles may use; repeat it for several, and name all of them each time",
    )  # fmt: skip
    options.add_json(subparser)


def run(arguments: argparse.Namespace) -> int:
    keys = make_keys(arguments.folder, arguments.runs)
    if arguments.json:
        told = [msgspec.structs.asdict(key) | {"file": str(key.file)} for key in keys]
        output.print_json({"dir": str(arguments.folder), "runs": arguments.runs, "keys": told})
        return 0
    table = Table("role", "public key", "seed", "", box=None, pad_edge=False)
    for key in keys:
        table.add_row(key.role, key.public_key, str(key.file), "made" if key.made else "kept")
    output.console().print(table)
    print(f"{arguments.folder / 'server'}/users.conf: what each may do in {', '.join(arguments.runs)}")
    return 0
