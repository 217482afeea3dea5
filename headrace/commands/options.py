"""Options that several commands share, so that they are the same everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.folder import DEFAULT_DIR, RunFolder, find_run
from headrace.inquiry import Place
from schemas import check_name


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help="folder that holds runs (default: runs)")


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        help="NATS server, nats://HOST:PORT or tls://HOST:PORT, or several separated by commas; who connects is in the "
        "environment: HEADRACE_NATS_NKEY (file with a key) or HEADRACE_NATS_USER and HEADRACE_NATS_PASSWORD; for TLS "
        "HEADRACE_NATS_CA is the file of the authority",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="run configuration, a TOML file")
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="set a key on top of the file, for example run.steps=100; may be repeated",
    )  # fmt: skip


def add_accept_changes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept-changes", action="store_true", help="go on with a run although its configuration has changed"
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """RUN, and where to find it."""
    parser.add_argument("run", metavar="RUN", help="name of the run")
    add_dir(parser)
    add_server(parser)


def place_of(arguments: argparse.Namespace) -> Place:
    """Where the run is that ``add_run`` was given. Raises RunError that names the runs which there are."""
    check_name(arguments.run, "run")
    if arguments.server:
        return Place(arguments.run, RunFolder(arguments.dir / arguments.run), arguments.server)
    return Place(arguments.run, find_run(arguments.run, arguments.dir))


def example(parser: argparse.ArgumentParser, *lines: str) -> None:
    """What ``--help`` ends with."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["example:", *(f"  {line}" for line in lines)])
