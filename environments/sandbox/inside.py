"""The sandbox's process: builds the walls, runs one program in a child behind them, and tells how it ended.

Started as ``python -I -S inside.py`` with an empty environment. Standard input brings a JSON object: ``program``,
``isolation``, ``cpu_s``, ``wall_s``, ``memory_bytes``. Standard output is the program's output, and standard error
is this process's report, a JSON object: ``isolation`` and ``ended`` (``exit``, ``time`` or ``signal``) with ``code``;
or ``refused``, and then the program did not run. The program never sees the descriptor of the report.
"""

import ast
import io
import linecache
import os
import signal
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
import walls  # type: ignore[import-not-found]

sys.path.pop(0)

# No file can be opened later, so that this is all that programs can import.
import bisect
import calendar
import cmath
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import itertools
import json
import math
import operator
import random
import re
import statistics
import string
import time
import typing
import unicodedata

MODULES = (
    ast, bisect, calendar, cmath, collections, copy, dataclasses, datetime, decimal, enum, fractions, functools, heapq,
    itertools, json, math, operator, random, re, statistics, string, time, typing, unicodedata,
)  # fmt: skip
NAME = "<program>"


class OnlyThese:
    """Last of the finders: says what can be imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        names = ", ".join(sorted(module.__name__ for module in MODULES))
        raise ModuleNotFoundError(f"no module {name!r} here; there are {names}")


def main() -> None:
    """Read, build, fork, wait, report."""
    asked = json.loads(sys.stdin.buffer.read())
    isolation, why = asked["isolation"], ""
    if isolation in ("auto", "namespaces"):
        try:
            walls.enter_namespaces()
            isolation = "namespaces"
        except OSError as error:
            if isolation == "namespaces":
                return report(refused=f"namespaces of its own are not to be had ({error})")
            isolation, why = "filter", str(error)
    nothing = os.open(os.devnull, os.O_RDONLY)
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(nothing, 0)
        os.dup2(1, 2)  # the report stays with the parent
        for each in (nothing, told):
            os.close(each)
        behind_walls(asked, isolation, tells)
    os.close(tells)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, asked["wall_s"])
    with os.fdopen(told) as pipe:
        refused = pipe.read()
    _, status, usage = os.wait4(child, 0)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    if refused:
        return report(refused=refused)
    if os.WIFEXITED(status):
        return report(isolation=isolation, why=why, ended="exit", code=os.WEXITSTATUS(status))
    # The kernel counts processor time for the limit in ticks, whoever has most of a tick: among other programs the
    # limit strikes early. Little else sends SIGKILL.
    spent = usage.ru_utime + usage.ru_stime > 0.4 * asked["cpu_s"]
    late = remaining == 0 or (spent and os.WTERMSIG(status) == signal.SIGKILL)
    report(isolation=isolation, why=why, ended="time" if late else "signal", code=os.WTERMSIG(status))


def report(**fields: object) -> None:
    sys.stderr.write(json.dumps(fields))


def behind_walls(asked: dict[str, typing.Any], isolation: str, tells: int) -> typing.NoReturn:
    """In the child: close the walls, run the program, exit with 0 or, where it raised, with 1."""
    try:
        walls.limit_resources(cpu_s=asked["cpu_s"], memory_bytes=asked["memory_bytes"])
        if isolation == "namespaces":
            walls.enter_empty_root()
        walls.drop_privileges()
        sys.path.clear()
        sys.meta_path[2:] = [OnlyThese()]  # keeps the finders of built-in and frozen modules
        typing.cast(io.TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)
        if isolation != "limits":
            walls.filter_system_calls()
    except (OSError, ValueError) as error:
        os.write(tells, f"the walls could not be built ({error})".encode())
        os._exit(1)
    os.close(tells)
    code = run(asked["program"])
    try:
        sys.stdout.flush()
    finally:
        os._exit(code)


def run(program: str) -> int:
    """Execute ``program`` and print its error, or the value of its last line as an interactive interpreter does."""
    linecache.cache[NAME] = (len(program), None, program.splitlines(keepends=True), NAME)
    space: dict[str, object] = {"__name__": "__main__"}
    try:
        tree = ast.parse(program, NAME)
        *_, last = [None, *tree.body]
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, NAME, "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NAME, "eval"), space)
            if value is not None:
                print(repr(value))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME]
        lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
        sys.stdout.write("Traceback (most recent call last):\n" * bool(frames) + "".join(lines))
        return 1
    return 0


if __name__ == "__main__":
    main()
