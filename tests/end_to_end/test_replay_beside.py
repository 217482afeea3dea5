"""Training again from the log of a run that goes on, of the same one after SIGKILL, and with a damaged checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.conftest import ROOT, Start

pytestmark = pytest.mark.timeout(500)


def replay(folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """What ``headrace replay train --json`` ends with, and what it says beside. Raises AssertionError if it fails."""
    command = [sys.executable, "-m", "headrace", "replay", "train", folder.name, "--dir", str(folder.parent), "--json"]
    told = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    result: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return result, told.stderr


def test_a_run_is_trained_again_while_it_goes_on_and_after_it_was_killed(start: Start, tmp_path: Path) -> None:
    up = start(tmp_path, sets=["run.steps=1000", "trainer.checkpoint_every=3", "trainer.keep_checkpoints=3"])
    up.until("step   4/1000")
    result, _ = replay(up.folder)
    assert result["identical"]
    assert result["steps"] >= 4
    assert up.process.poll() is None, "the run goes on"
    up.until(f"step {result['last_step'] + 3:>3}/1000")

    family = up.descendants()
    up.process.kill()
    psutil.wait_procs(family, timeout=20)
    result, _ = replay(up.folder)
    assert result["identical"]
    last = result["last_step"]

    checkpoints = up.folder / "checkpoints"
    newest = max(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*"))
    largest = max((checkpoints / f"step-{newest}").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    before = sorted(path.name for path in checkpoints.iterdir())
    result, said = replay(up.folder, "--steps", f"{min(newest + 1, last)}..")
    assert result["identical"]
    assert result["checkpoint"] == newest - 3
    assert f"step-{newest} is damaged" in said or newest == last
    assert sorted(path.name for path in checkpoints.iterdir()) == before, "replay only reads"
