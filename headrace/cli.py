"""The command line: ``headrace COMMAND``. Each command is a module in ``headrace.commands``.

Exit codes: 0 success, 1 an error with a message, 2 a wrong command line, 3 must not be started again, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from schemas import HeadraceError

COMMANDS = (
    "up", "dispatch", "generate", "train", "sink", "topology", "status", "tail", "runs", "pause", "resume", "stop",
    "show", "replay", "decode", "schemas", "model", "env", "keys", "plan", "doctor",
)  # fmt: skip
MODULE_OF = {
    "dispatch": "role", "generate": "role", "train": "role", "sink": "role",
    "pause": "control", "resume": "control", "stop": "control",
}  # fmt: skip
"""Commands that share a module; the others have one of their own name."""


REMEDIES = {
    errno.ENOSPC: "make room on that disk, or choose another folder",
    errno.EDQUOT: "make room on that disk, or choose another folder",
    errno.EACCES: "choose a place that you may use, or ask for the right to it",
    errno.EROFS: "choose a place that can be written",
}
"""What a user can do about a fault of the file system, wherever it is met."""


class Command(Protocol):
    """What a module in ``headrace.commands`` provides."""

    HELP: dict[str, str]
    """Command to its line in ``headrace --help``."""

    def add_arguments(self, parser: argparse.ArgumentParser, name: str) -> None:
        """Declare the arguments of command ``name``; the parser's epilog shows an example."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit code. Raises HeadraceError with a message for the user."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command."""
    argv = sys.argv[1:] if argv is None else list(argv)
    command = "headrace"
    try:
        parser, modules = _parser(argv)
        arguments = parser.parse_args(argv)
        command = f"headrace {arguments.command}"
        code = modules[arguments.command].run(arguments)
        sys.stdout.flush()  # here, where a broken pipe is still ours to answer
        return code
    except HeadraceError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone, as in `headrace tail RUN | head`. Nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0)
        if remedy is None or error.filename is None:
            raise  # Ours to repair, not the user's: it needs its stack trace.
        print(f"{command}: {error.filename}: {error.strerror}: {remedy}", file=sys.stderr)
        return 1


def program() -> NoReturn:
    """One command as a process of its own, which ends at once when the command has.

    The interpreter's own end takes two seconds where vLLM and torch are loaded, a fifth of what a role has that is
    asked to end, and takes apart what the kernel frees anyway.
    """
    try:
        code = main()
    except SystemExit as ending:  # argparse, and roles that a signal has ended; none has words
        code = ending.code if isinstance(ending.code, int) else 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


def _parser(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, Command]]:
    """The parser, with the full arguments of the command that is called: the others' modules are not loaded."""
    parser = argparse.ArgumentParser(prog="headrace", description="Asynchronous RL post-training on a durable log.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = next((argument for argument in argv if argument in COMMANDS), None)
    modules: dict[str, Command] = {}
    for name in COMMANDS:
        if called not in (None, name):
            subparsers.add_parser(name)
            continue
        module: Command = importlib.import_module(f"headrace.commands.{MODULE_OF.get(name, name)}")
        modules[name] = module
        subparser = subparsers.add_parser(
            name, help=module.HELP[name], formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(subparser, name)
    return parser, modules
