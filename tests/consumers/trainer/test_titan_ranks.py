"""Two ranks that shard the model and the batch train as one process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.consumers.trainer import titan_rank
from tests.consumers.trainer.tiny_models import make_model

PROGRAM = Path(titan_rank.__file__)
ROOT = PROGRAM.parents[3]


def train_two_ranks(folder: Path, models: list[Path]) -> None:
    folder.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(rank), "2", *map(str, models)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)


def check_same(found: Path, expected: Path, start: Path) -> None:
    metrics = json.loads((expected / "metrics-0.json").read_text())
    for rank in range(2):
        for mine, theirs in zip(json.loads((found / f"metrics-{rank}.json").read_text()), metrics, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3)
    before, after = load_file(start / "model.safetensors"), load_file(expected / "weights.safetensors")
    sharded = load_file(found / "weights.safetensors")
    assert sharded.keys() == after.keys() == before.keys()
    for name, value in sharded.items():
        moved = (after[name] - before[name]).abs().mean()
        assert moved > 5e-4
        assert (value - after[name]).abs().mean() < 0.01 * moved, name


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    models = [make_model(tmp_path, name) for name in ("qwen3", "llama-untied")]
    (tmp_path / "one").mkdir()
    train_two_ranks(tmp_path / "two", models)
    for model in models:
        titan_rank.train(model, tmp_path / "one" / model.name, 0, 1)
        check_same(tmp_path / "two" / model.name, tmp_path / "one" / model.name, model)
