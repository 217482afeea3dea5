"""``headrace schemas export | check``: the JSON Schemas of all events, and whether they only grew."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas import HeadraceError, snapshots

from . import options, output

HELP = {"schemas": "write the events' JSON Schemas, or check that old payloads stay readable"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(parser, "headrace schemas check", "headrace schemas export build/schemas")
    actions = parser.add_subparsers(dest="action", required=True, metavar="export | check")
    for action, about in (("export", "write the schemas"), ("check", "compare the code with written schemas")):
        subparser = actions.add_parser(action, help=about)
        options.example(subparser, f"headrace schemas {action}")
        subparser.add_argument(
            "folder", type=Path, nargs="?", default=snapshots.SNAPSHOTS, metavar="DIR",
            help="folder of the schemas (default: the snapshots that come with the code)",
        )  # fmt: skip
        options.add_json(subparser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "export":
        return _export(arguments.folder, as_json=arguments.json)
    return _check(arguments.folder, as_json=arguments.json)


def _export(folder: Path, *, as_json: bool) -> int:
    try:
        written = snapshots.export(folder)
    except OSError as error:
        raise HeadraceError(f"schemas cannot be written to {folder}: {error.strerror}: give another folder") from None
    if as_json:
        output.print_json({"written": [str(path) for path in written]})
    else:
        for path in written:
            print(path)
    return 0


def _check(folder: Path, *, as_json: bool) -> int:
    if not folder.is_dir():
        raise HeadraceError(f"there is no folder {folder} to compare with: headrace schemas export {folder} makes it")
    faults = snapshots.check(folder)
    if as_json:
        output.print_json({"events": len(snapshots.schemas()), "faults": faults})
    elif not faults:
        print(f"{len(snapshots.schemas())} events are as recorded in {folder}")
    else:
        for fault in faults:
            print(fault)
    return 1 if faults else 0
