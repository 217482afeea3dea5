"""A process that answers questions for this one, a line of JSON each: for libraries that block or hang.

It starts when it is first asked, is shared by all who name the same script, and ends with this process.
"""

from __future__ import annotations

import functools
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec

from schemas import EnvironmentFault

START_S = 180.0
"""To import its libraries; sympy and reasoning-gym take 10 s on a busy machine."""
PART = 1 << 16

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
"""All that it gets. The hash seed makes the order of sets, and with it some libraries' tasks, the same everywhere."""


class NoAnswer(Exception):
    """The process hung or died over a question; the next question goes to a new one."""


class Worker:
    """May be asked from several threads; answers one question at a time."""

    def __init__(self, script: Path) -> None:
        """``script`` prints ``"ready"`` when it has started, then a line for each line that it reads."""
        self._script = script
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Any, *, within_s: float) -> Any:
        """The answer to ``question``, both JSON values.

        Raises NoAnswer where there is none within ``within_s`` seconds of its turn, EnvironmentFault where the process
        cannot be started.
        """
        line = msgspec.json.encode(question) + b"\n"
        with self._turn:
            process = self._process or self._started()
            try:
                return self._exchange(process, line, within_s)
            except (NoAnswer, OSError, msgspec.DecodeError) as error:
                self._stop()
                raise NoAnswer(str(error)) from None

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            (sys.executable, "-P", str(self._script)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_ENVIRONMENT, cwd="/",
        )  # fmt: skip
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        try:
            self._exchange(process, b"", START_S)
        except (NoAnswer, OSError, msgspec.DecodeError):
            self._stop()
            raise EnvironmentFault(
                f"{self._script.name} cannot be run: try {sys.executable} {self._script}; "
                "pip install 'headrace[environments]' installs what it needs"
            ) from None
        return process

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes, within_s: float) -> Any:
        assert process.stdin is not None  # it is a pipe
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        until = time.monotonic() + within_s
        said = b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            part = os.read(process.stdout.fileno(), PART) if ready else b""
            if not part:
                raise NoAnswer(f"no answer in {within_s:g} s" if not ready else "its process died")
            said += part
        return msgspec.json.decode(said)

    def _stop(self) -> None:
        self._process = None
        self._end()


@functools.cache
def shared_worker(name: str) -> Worker:
    """The one that runs ``name``, a script beside this module."""
    return Worker(Path(__file__).with_name(name))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
