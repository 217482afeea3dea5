"""``headrace doctor``: what is missing or wrong here, with the remedy."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace import config as configuration
from headrace.doctor import Finding, examine
from headrace.server import address_from_environment
from schemas import ConfigError

from . import options, output

HELP = {"doctor": "what is missing or wrong here, with the remedy"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(parser, "headrace doctor", "headrace doctor configs/demo.toml --server nats://127.0.0.1:4222")
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="look at what this configuration needs")
    options.add_overrides(parser)
    options.add_dir(parser)
    options.add_server(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.overrides and arguments.config is None:
        raise ConfigError(
            f"--set {arguments.overrides[0]} changes a configuration, and none is given: "
            f"headrace doctor CONFIG --set {arguments.overrides[0]}"
        )
    config = configuration.load(arguments.config, arguments.overrides) if arguments.config else None
    address = address_from_environment(arguments.server) if arguments.server else None
    findings = examine(config, arguments.dir, address)
    if arguments.json:
        output.print_json(findings)
    else:
        _show(findings)
    return 0 if all(finding.ok for finding in findings) else 1


def _show(findings: list[Finding]) -> None:
    console = output.console()
    for finding in findings:
        mark, style = ("ok", "green") if finding.ok else ("WRONG", "bold red")
        console.print(f"{mark:6}", style=style, end="")
        console.print(f"{finding.name}: {finding.detail}", soft_wrap=True)
        if finding.remedy and not finding.ok:
            console.print(f"      {finding.remedy}", soft_wrap=True)
