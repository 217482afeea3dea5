"""``headrace replay events`` from a run that goes on, and from one that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bus import Bus, EmbeddedServer
from headrace.folder import RunFolder
from headrace.inquiry import Place, ask
from headrace.server import environment_for
from schemas import LEDGER, Step
from tests.end_to_end.conftest import ROOT, Start, Up
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.timeout(400)
ENDLESS = ["run.steps=1000"]


def steps_of(folder: RunFolder) -> list[Any]:
    async def question(bus: Bus, goes_on: bool) -> list[Any]:
        steps = [each.event async for each in bus.read(LEDGER, kinds=(Step,))]
        return [(step.groups, step.packing, step.weights_after) for step in steps if isinstance(step, Step)]

    return ask(Place(folder.name, folder), question)


def train_again(folder: Path, speed: str) -> dict[str, Any]:
    """Publish the rollouts of ``whole`` into ``dev``, with a trainer for them; returns what the command tells."""
    words = ["replay", "events", "whole", "--into", "dev", "--speed", speed, "--dir", str(folder), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        assert any(line.startswith("  headrace train ") for line in process.stderr), "it ended"
        addresses = EmbeddedServer.find(folder / "dev" / "nats")
        assert addresses is not None
        trainer = subprocess.run(
            [sys.executable, "-m", "headrace", "train", str(folder / "dev" / "config.json"), "--dir", str(folder)],
            cwd=ROOT, env=os.environ | environment_for(addresses["trainer"]), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert trainer.returncode == 0, trainer.stderr
        out, err = process.communicate()
        assert process.returncode == 0, err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def say(action: str, folder: Path) -> None:
    command = [sys.executable, "-m", "headrace", action, "whole", "--dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def begun(start: Start, folder: Path) -> Up:
    up = start(folder, sets=ENDLESS)
    up.until("step   3/1000")
    return up


def test_a_run_that_goes_on_is_not_disturbed(start: Start, tmp_path: Path) -> None:
    """It is paused meanwhile: two runs at once would take long where there are few processors."""
    up = begun(start, tmp_path)
    say("pause", tmp_path)
    result = train_again(tmp_path, "max")
    say("resume", tmp_path)
    up.until(f"step {len(steps_of(RunFolder(up.folder))) + 1:>3}/1000")
    up.process.send_signal(signal.SIGINT)
    up.process.wait(timeout=30)
    again = steps_of(RunFolder(tmp_path / "dev"))
    assert 3 <= result["steps"] == len(again)
    assert again == steps_of(RunFolder(up.folder))[: len(again)], "the same batches, and the same weights"


def test_a_run_that_was_killed_gives_the_steps_that_it_has_committed(start: Start, tmp_path: Path) -> None:
    up = begun(start, tmp_path)
    family = up.descendants()
    up.process.kill()
    psutil.wait_procs(family, timeout=DEADLINE_S)
    result = train_again(tmp_path, "20")
    again = steps_of(RunFolder(tmp_path / "dev"))
    assert 3 <= result["steps"] == len(again)
    assert again == steps_of(RunFolder(up.folder))
