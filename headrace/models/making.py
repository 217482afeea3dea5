"""Making the model that a configuration asks for, where it is not there yet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.children import tied_to
from schemas import ModelError, ModelSettings

from .check import ModelSummary, check_model

COMMANDS = {"tiny": ["tiny"], "smollm2-135m": ["fetch", "smollm2-135m"]}
"""``model.make`` to the words after ``headrace model``."""


def make_model(settings: ModelSettings, *, tokens: int = 0, say: Callable[[str], None]) -> ModelSummary:
    """Check ``model.path``; make it first where it is missing and ``model.make`` says how.

    A process of its own does it: the engines it loads would otherwise stay in this one's memory for the whole run.
    ``tokens``: most that a rollout may have. ``say`` gets its progress, line by line. Raises ModelError.
    """
    folder = Path(settings.path)
    if settings.make and not folder.exists():
        words = ["model", *COMMANDS[settings.make], str(folder)]
        say(f"{folder} is missing: headrace {' '.join(words)}")
        try:
            _run([sys.executable, "-m", "headrace", *words], say)
        except ModelError:
            if not folder.exists():
                raise
            say(f"{folder} has been made by another process meanwhile: it is taken")
    return check_model(folder, tokens=tokens)


def _run(command: list[str], say: Callable[[str], None]) -> None:
    last = ""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=tied_to(os.getpid()),
    ) as process:  # fmt: skip
        assert process.stderr is not None
        try:
            for line in process.stderr:
                last = line.strip() or last
                say(line.rstrip())
        except BaseException:  # We are asked to end; the block would wait for the process to end by itself.
            process.kill()
            raise
    if process.returncode:
        raise ModelError(last.removeprefix("headrace model: ") or f"{command} ended with {process.returncode}: run it")
