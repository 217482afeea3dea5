"""Runs programs one process each, within limits, and says how they ended. ``inside.py`` is that process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from schemas import EnvironmentFault

Isolation = Literal["auto", "namespaces", "filter", "limits"]
"""How far a program is kept apart, strongest first; each includes those after it.

``namespaces``: own users, files (none), processes, network; ``filter``: a filter of system calls, without files,
sockets, processes; ``limits``: time, memory and size only; ``auto``: the strongest that this machine gives, but
never less than ``filter``.
"""

MOST_CODE = 100_000
"""Characters of a program; a model's mistake, not a program, is longer."""
GRACE_S = 2.0
"""Beyond its time, the sandbox's process is ended from outside; starting it on a busy machine counts too."""
PROBE_S = 30.0
END_S = 10.0
"""A killed process is gone in milliseconds, except on a machine that is in trouble."""

_COMMAND = (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("inside.py")))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one program may use."""

    cpu_s: int = 2
    """Whole seconds of processor time: the same on a busy machine, so that it is what normally ends a loop."""
    wall_s: float = 10.0
    """Seconds of wall-clock time, for programs that sleep."""
    memory_mib: int = 256
    """Address space, the interpreter's own 40 MiB included."""
    output_chars: int = 4000
    """Most characters of output; a program that prints more is ended."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    output: str
    """What it printed, errors included, and the value of its last line where that is an expression."""
    problem: str = ""
    """Which limit ended it, in words; empty where none did."""
    code: int = 0
    """Its exit code; 1 where it raised or met a limit."""

    @property
    def failed(self) -> bool:
        return bool(self.problem) or self.code != 0


class _Report(msgspec.Struct, frozen=True):
    """What ``inside.py`` says."""

    isolation: Literal["namespaces", "filter", "limits"] = "limits"
    why: str = ""
    ended: Literal["exit", "time", "signal"] = "exit"
    code: int = 0
    refused: str = ""


class Interpreter:
    """Runs programs; at most one for each processor at once, others wait for their turn."""

    def __init__(self, limits: Limits, isolation: Isolation = "auto") -> None:
        """Builds the walls once around nothing. Raises EnvironmentFault where ``isolation`` is not to be had."""
        self.limits = limits
        report = self._probe(isolation)
        self.isolation: Isolation = report.isolation
        """In force, never ``auto``."""
        self.why_not_more = report.why
        """Why there are no namespaces; empty where there are, or none were asked for."""
        self._turns = asyncio.Semaphore(os.cpu_count() or 1)

    async def run(self, program: str) -> Ran:
        """Run ``program`` in a process of its own, which has ended when this returns, also by cancellation.

        Raises EnvironmentFault where the sandbox itself fails; whatever the program does is a Ran.
        """
        if len(program) > MOST_CODE:
            return Ran(output="", problem=f"the program is longer than {MOST_CODE:,} characters", code=1)
        async with self._turns:
            return await self._run(program)

    async def _run(self, program: str) -> Ran:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={}, cwd="/", start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self.limits.wall_s + GRACE_S):
                output, complete = await self._talk(process, self._asked(program, self.isolation))
                if not complete:
                    return self._cut(output, f"it printed more than {self.limits.output_chars:,} characters")
                report = _decode(await _read(process.stderr, 10_000))
                await process.wait()
        except TimeoutError:
            return self._cut(b"", f"it took longer than {self.limits.wall_s:g} s")
        finally:
            await _end(process)
        return self._ran(output, report)

    async def _talk(self, process: asyncio.subprocess.Process, asked: bytes) -> tuple[bytes, bool]:
        """The program's output, and whether that is all of it."""
        assert process.stdin is not None  # it is a pipe
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then the report says more
            process.stdin.write(asked)
            await process.stdin.drain()
        process.stdin.close()
        most = 4 * self.limits.output_chars  # bytes of one character in UTF-8
        output = await _read(process.stdout, most + 1)
        return output, len(output) <= most and len(_text(output)) <= self.limits.output_chars

    def _cut(self, output: bytes, problem: str) -> Ran:
        return Ran(output=_text(output)[: self.limits.output_chars], problem=problem, code=1)

    def _ran(self, output: bytes, report: _Report) -> Ran:
        if report.refused:
            raise EnvironmentFault(
                f"the interpreter's sandbox failed: {report.refused}: see environments.args.isolation"
            )
        if report.ended == "time":
            limits = f"{self.limits.cpu_s} s of processor time or {self.limits.wall_s:g} s in all"
            return self._cut(output, f"it took longer than {limits}")
        if report.ended == "signal":
            return self._cut(output, f"it was ended by {_signal_name(report.code)}")
        return Ran(output=_text(output), code=report.code)

    def _asked(self, program: str, isolation: Isolation) -> bytes:
        asked: dict[str, Any] = {
            "program": program.encode("utf-8", errors="replace").decode(),  # a lone surrogate has no encoding
            "isolation": isolation,
            "cpu_s": self.limits.cpu_s,
            "wall_s": self.limits.wall_s,
            "memory_bytes": self.limits.memory_mib << 20,
        }
        return msgspec.json.encode(asked)

    def _probe(self, isolation: Isolation) -> _Report:
        try:
            ended = subprocess.run(
                _COMMAND, input=self._asked("6*7", isolation), capture_output=True, env={}, cwd="/",
                timeout=PROBE_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentFault(f"the interpreter's sandbox cannot be started ({error}): {REMEDY}") from None
        report = _decode(ended.stderr)
        if report.refused or ended.stdout != b"42\n":
            why = report.refused or f"it answered {ended.stdout[:200]!r}, {report.ended} {report.code}"
            raise EnvironmentFault(
                f"the interpreter's sandbox does not work with isolation {isolation!r}: {why}: {REMEDY}"
            )
        return report


REMEDY = (
    'set isolation to one that this machine gives, "filter" or, only where programs may read and write whatever this '
    'user may, "limits"'
)


async def _read(stream: asyncio.StreamReader | None, most: int) -> bytes:
    """Up to the end of ``stream``, or ``most`` bytes."""
    assert stream is not None  # it is a pipe
    parts = b""
    while len(parts) < most and (part := await stream.read(most - len(parts))):
        parts += part
    return parts


def _decode(report: bytes) -> _Report:
    try:
        return msgspec.json.decode(report, type=_Report)
    except msgspec.DecodeError:
        return _Report(refused=f"its process said {report[-300:].decode(errors='replace')!r}")


def _text(output: bytes) -> str:
    return output.decode("utf-8", errors="replace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and all of its group, of which it is the leader.

    What it wrote last must be read, because asyncio regards a process with a full pipe as one that goes on.
    Raises EnvironmentFault where it outlives SIGKILL.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(END_S):
            for stream in (process.stdout, process.stderr):
                while await _read(stream, 1 << 16):
                    pass
            await process.wait()
    except TimeoutError:
        raise EnvironmentFault(f"the sandbox's process {process.pid} outlives SIGKILL: look at the machine") from None
