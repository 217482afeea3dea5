"""A run whose weights are deltas, and whose trainer is killed: nothing is lost, and every version can be had."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, Start
from tests.end_to_end.logbook import check, read_logbook

pytestmark = pytest.mark.timeout(400)
STEPS = 16
SETS = [
    f"run.steps={STEPS}", "weights.whole_every=4", "weights.keep=3", "weights.dtype=bfloat16", "trainer.lr=1e-6",
    "trainer.checkpoint_every=4",
]  # fmt: skip


@pytest.mark.parametrize("store", ["file", "jetstream"])
def test_weights_that_are_deltas_survive_a_killed_trainer(store: str, start: Start, tmp_path: Path) -> None:
    up = start(tmp_path, generators=2, sets=[*SETS, f"weights.store={store}"])
    up.until(f"step   1/{STEPS}")
    (trainer,) = up.running("train")  # Looking for it takes a while, and meanwhile the run goes on.
    up.until(f"step   3/{STEPS}")
    trainer.kill()
    summary = up.end()
    assert (summary["steps"], summary["restarts"]["trainer"], summary["restarts"]["generator"]) == (STEPS, 1, 0)
    book = read_logbook(up.folder)
    check(book)
    deltas = [weights for weights in book.weights if weights.base is not None]
    assert len(deltas) >= STEPS - 1, "all but the first, and one that the kill left unannounced"
    assert all(weights.base == weights.version - 1 for weights in deltas)
    assert all((weights.delta_bytes or 0) < weights.size_bytes / 10 for weights in deltas)
    assert len({event.id for event in book.lifecycle if event.state == "swapped"}) == 2
    out = tmp_path / "out"
    words = ["model", "export", "whole", str(out), "--dir", str(tmp_path), "--version", str(STEPS - 1)]
    subprocess.run([sys.executable, "-m", "headrace", *words], cwd=ROOT, check=True)
    exported = (out / "model.safetensors").read_bytes()
    assert hashlib.sha256(exported).hexdigest() == book.weights[-2].sha256
