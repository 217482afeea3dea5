"""``headrace dispatch | generate | train | sink``: one role, against a NATS server."""

from __future__ import annotations

import argparse
import socket

from bus import Address
from headrace import config as configuration
from headrace import roles
from headrace.folder import RunFolder
from headrace.server import address_from_environment
from schemas import check_name

from . import options

HELP = {
    "dispatch": "the dispatcher: publishes tasks",
    "generate": "a generator: plays groups and publishes rollouts",
    "train": "the trainer: consumes rollouts, steps, publishes weights",
    "sink": "a sink: metrics (Prometheus), archive (Parquet) or dead (letters, as log lines)",
}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    kind = "metrics " if name == "sink" else ""
    parser.epilog = f"example:\n  headrace {name} {kind}configs/demo.toml --server nats://127.0.0.1:4222"
    if name == "sink":
        parser.add_argument("kind", choices=("metrics", "archive", "dead"))
    options.add_config(parser)
    options.add_dir(parser)
    options.add_server(parser)
    if name in ("dispatch", "generate"):
        parser.add_argument("--id", default=socket.gethostname().split(".")[0], help="name of this instance")


def run(arguments: argparse.Namespace) -> int:
    config = configuration.load(arguments.config, arguments.overrides)
    folder = RunFolder(arguments.dir / config.run.name)
    address = address_from_environment(arguments.server)
    match arguments.command:
        case "dispatch":
            return roles.run_role(lambda: roles.dispatch(config, address, check_name(arguments.id, "--id")))
        case "generate":
            return roles.run_role(lambda: roles.generate(config, address, check_name(arguments.id, "--id"), folder))
        case "train":
            return roles.run_role(lambda: _train(config, address, folder))
        case _:
            return roles.run_role(lambda: roles.sink(config, address, arguments.kind, folder))


def _train(config: configuration.RunConfig, address: Address, folder: RunFolder) -> None:
    from headrace.training import train

    train(config, address, folder)
