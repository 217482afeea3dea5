"""``headrace dispatch | generate | train | sink``: one role, against a NATS server."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from pathlib import Path

from bus import Address
from headrace import config as configuration
from headrace import logs, roles
from headrace.folder import RunFolder
from headrace.launch import launch
from headrace.server import address_from_environment
from headrace.stay import stay
from schemas import check_name

from . import options

log = logging.getLogger("headrace.roles")
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
    if name == "generate":
        parser.epilog += (
            "\n  headrace generate --run demo --server nats://nats.example:4222    (takes all else from NATS)"
        )
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        _add_config_or_run(parser)
    else:
        options.add_config(parser)
    options.add_dir(parser)
    options.add_server(parser)
    if name == "train":
        options.add_accept_changes(parser)
    if name in ("dispatch", "generate"):
        parser.add_argument("--id", default=socket.gethostname().split(".")[0], help="name of this instance")
    parser.add_argument(
        "--stay", action="store_true",
        help="when the run is finished or stopped, or this must not be started again, wait for SIGTERM and then end: "
        "for containers that are started again whenever they end",
    )  # fmt: skip


def _add_config_or_run(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="run configuration, a TOML file")
    either.add_argument(
        "--run", metavar="NAME",
        help="instead of CONFIG: take configuration and model of this run from NATS, where its trainer has put them "
        "(weights.store)",
    )  # fmt: skip
    options.add_overrides(parser)


def run(arguments: argparse.Namespace) -> int:
    code = _run(arguments)
    if arguments.stay and code in (0, roles.FINAL):
        log.info("%s: waiting to be stopped", "done" if code == 0 else "starting this again would not help")
        stay(code)
    return code


def _run(arguments: argparse.Namespace) -> int:
    address = address_from_environment(arguments.server)
    if arguments.config is None:
        return roles.run_role(lambda: _join(arguments, address))
    config = configuration.load(arguments.config, arguments.overrides)
    folder = RunFolder(arguments.dir / config.run.name)
    match arguments.command:
        case "dispatch":
            return roles.run_role(lambda: roles.dispatch(config, address, check_name(arguments.id, "--id")))
        case "generate":
            return roles.run_role(lambda: roles.generate(config, address, check_name(arguments.id, "--id"), folder))
        case "train":
            return _train(arguments, config, address, folder)
        case _:
            return roles.run_role(lambda: roles.sink(config, address, arguments.kind, folder))


def _join(arguments: argparse.Namespace, address: Address) -> None:
    """A generator without a configuration of its own."""
    run, id = check_name(arguments.run, "--run"), check_name(arguments.id, "--id")
    folder = RunFolder(arguments.dir / run)
    config = roles.join(run, address, id, folder, arguments.overrides)
    roles.generate(config, address, id, folder)


def _train(arguments: argparse.Namespace, config: configuration.RunConfig, address: Address, folder: RunFolder) -> int:
    """The trainer, in this process; or in as many others as it takes, where nobody has started these yet."""
    if config.trainer.ranks > 1 and "RANK" not in os.environ:
        logs.configure(config.run.name, f"trainer/{config.trainer.instance}", lambda: None)
        return launch(_again(arguments), config.trainer.ranks)
    from headrace.training import train

    return roles.run_role(lambda: train(config, address, folder, accept_changes=arguments.accept_changes))


def _again(arguments: argparse.Namespace) -> list[str]:
    """The command line of a ``headrace train`` once more, for a rank: it does not stay."""
    words = ["train", str(arguments.config), "--dir", str(arguments.dir)]
    words += [word for each in arguments.overrides for word in ("--set", each)]
    words += ["--server", arguments.server] if arguments.server else []
    return words + (["--accept-changes"] if arguments.accept_changes else [])
