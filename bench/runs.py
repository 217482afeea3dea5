"""Whole runs by the real command, as benchmarks need them: the summary, every step, and what the processes used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import psutil

from headrace.children import tied_to
from schemas import Step
from tests.end_to_end.conftest import ROOT
from tests.end_to_end.logbook import read_logbook

POLL_S = 1.0
ROLES = {"train": "trainer", "generate": "generator", "dispatch": "dispatcher", "up": "supervisor"}
SERVER = "nats-server"


class Use(msgspec.Struct, frozen=True):
    """What a process used, at one moment."""

    at_s: float
    """Since the run's command was started."""
    rss_mib: float
    cpu_s: float
    """Of the process so far, user and system."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended well."""

    folder: Path
    summary: dict[str, Any]
    steps: list[Step]
    committed_at: list[float]
    """When each step was, in seconds since the epoch."""
    uses: dict[str, list[Use]]
    """Role, or ``nats-server``, to what its process used, every POLL_S."""


def run_up(folder: Path, config: Path, sets: list[str], *, limit_s: float) -> Run:
    """One ``headrace up`` in ``folder``, to its end. Raises SystemExit with its last words where it fails."""
    command = [sys.executable, "-m", "headrace", "up", str(config), "--dir", str(folder), "--json"]
    for each in sets:
        command += ["--set", each]
    folder.mkdir(parents=True, exist_ok=True)
    progress = folder / "progress"
    began = time.monotonic()
    say(f"{folder.name}: begins")
    with progress.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}, preexec_fn=tied_to(os.getpid()),
        )  # fmt: skip
        try:
            uses = _watch(process, progress, began, limit_s)
            output, _ = process.communicate()
        finally:
            _end(process)
    if process.returncode != 0:
        sys.exit(f"headrace up failed: {progress.read_text()[-2000:]}")
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    say(f"{folder.name}: {summary['steps']} steps in {time.monotonic() - began:.0f} s")
    name = summary["run"]
    book = read_logbook(folder / name)
    committed_at = [logged.time for logged in book.ledger if isinstance(logged.event, Step)]
    return Run(folder=folder / name, summary=summary, steps=book.steps, committed_at=committed_at, uses=dict(uses))


def say(words: str) -> None:
    """What goes on, for people who wait."""
    print(words, file=sys.stderr, flush=True)


def _watch(process: subprocess.Popen[str], progress: Path, began: float, limit_s: float) -> defaultdict[str, list[Use]]:
    """Look at the run's processes until it ends, or for ``limit_s`` at most."""
    uses: defaultdict[str, list[Use]] = defaultdict(list)
    told = began
    while process.poll() is None:
        now = time.monotonic()
        if now - began > limit_s:
            sys.exit(f"headrace up has not ended in {limit_s:.0f} s: {progress.read_text()[-2000:]}")
        if now - told > 30:
            told = now
            say(f"  {now - began:.0f} s: {(progress.read_text().splitlines() or ['starting'])[-1]}")
        for role, used in _used(process.pid, now - began):
            uses[role].append(used)
        time.sleep(POLL_S)
    return uses


def _used(pid: int, at_s: float) -> list[tuple[str, Use]]:
    found = []
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    for each in family:
        try:
            role, memory, times = _role(each.cmdline()), each.memory_info(), each.cpu_times()
        except psutil.Error:
            continue
        if role is not None:
            found.append((role, Use(at_s, memory.rss / 2**20, times.user + times.system)))
    return found


def _role(words: list[str]) -> str | None:
    if words and Path(words[0]).name == SERVER:
        return SERVER
    return next((role for word, role in ROLES.items() if words[1:4] == ["-m", "headrace", word]), None)


def _end(process: subprocess.Popen[str]) -> None:
    """Leave none of the run's processes behind."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
