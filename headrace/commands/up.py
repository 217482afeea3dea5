"""``headrace up``: embedded NATS and all roles, supervised, with progress."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Console

from headrace import config as configuration
from headrace.up import print_summary, up

from . import options

HELP = {"up": "run everything on this machine: embedded NATS and all roles, supervised"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    parser.epilog = "example:\n  headrace up configs/demo.toml --set run.name=first --set run.seed=1"
    options.add_config(parser)
    options.add_dir(parser)
    options.add_accept_changes(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    config = configuration.load(arguments.config, arguments.overrides)
    # With --json, standard output holds the summary alone as its last line; progress goes beside it.
    console = Console(stderr=arguments.json, emoji=False)
    summary = up(config, arguments.dir, console, accept_changes=arguments.accept_changes)
    if arguments.json:
        print(msgspec.json.encode(summary).decode())
    else:
        print_summary(summary, console)
    return 0
