"""Whole runs by the real command: real NATS, real torchtitan, and the stand-in engine or real vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from headrace.models import make_tiny
from tests.end_to_end.logbook import Logbook, read_logbook

ROOT = Path(__file__).parents[2]
STAND_IN = "tests.stand_in.engine:StandInEngine"
CONFIG = """
[run]
name = "whole"
steps = 24

[model]
path = "{model}"

[[environments]]
name = "guess"

[[environments]]
name = "reverse"

[generator]
engine = "{engine}"
count = {generators}
concurrency = 24
max_model_len = 64
kv_cache_gib = 0.25
metric_interval_s = 0.5
lease_s = 8

[trainer]
groups_per_step = 6
group_size = 4
row_tokens = 128
lr = 5e-4
checkpoint_every = 8

[weights]
keep = 0
"""


class Up(msgspec.Struct):
    """One ``headrace up`` and its surroundings."""

    process: subprocess.Popen[str]
    folder: Path
    progress: Path

    def until(self, words: str, count: int = 1) -> None:
        """Wait until progress has said ``words`` so many times. Raises AssertionError if it ends before."""
        while self.progress.read_text().count(words) < count:
            assert self.process.poll() is None, self.progress.read_text()
            psutil.wait_procs([psutil.Process(self.process.pid)], timeout=0.1)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def running(self, word: str) -> list[psutil.Process]:
        """The descendants with ``word`` as their program's name or in their command line.

        One that ends while we look, or whose parent has not taken note of its end yet, does not run.
        """
        found = []
        for process in self.descendants():
            try:
                words = process.cmdline()
            except psutil.NoSuchProcess:  # a zombie's error is one of these
                continue
            if words and (word in words or Path(words[0]).name == word):
                found.append(process)
        return found

    def end(self) -> dict[str, Any]:
        """Wait for its end; returns the summary. Raises AssertionError when it failed."""
        output, _ = self.process.communicate(timeout=400)
        assert self.process.returncode == 0, self.progress.read_text()
        summary: dict[str, Any] = json.loads(output.splitlines()[-1])
        return summary


Start = Callable[..., Up]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def start(model: Path) -> Iterator[Start]:
    """``start(folder, engine=..., generators=..., sets=[...])`` begins a run, or goes on with it."""
    begun: list[Up] = []

    def start(folder: Path, *, engine: str = STAND_IN, generators: int = 1, sets: list[str] | None = None) -> Up:
        folder.mkdir(exist_ok=True)
        config = folder / "config.toml"
        config.write_text(CONFIG.format(model=model, engine=engine, generators=generators))
        progress = Path(tempfile.mkstemp(dir=folder, suffix=".progress")[1])
        command = [sys.executable, "-m", "headrace", "up", str(config), "--dir", str(folder), "--json"]
        for each in sets or []:
            command += ["--set", each]
        with progress.open("w") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        begun.append(Up(process, folder / "whole", progress))
        return begun[-1]

    yield start
    for up in begun:
        if up.process.poll() is None:
            up.process.kill()
        up.process.communicate()


@pytest.fixture(scope="module")
def logbook_of() -> Callable[[Path], Logbook]:
    return read_logbook
