"""Two ranks train as one process does, whichever way they divide the work: by rows, matrices or columns."""

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

pytestmark = pytest.mark.timeout(400)
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


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [make_model(folder, name) for name in titan_rank.SETTINGS]


@pytest.fixture(scope="module")
def trained(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks made, in ``two``, and one process, in ``one``."""
    folder = tmp_path_factory.mktemp("trained")
    train_two_ranks(folder / "two", models)
    for model in models:
        titan_rank.train(model, folder / "one" / model.name, 0, {})
    return folder


@pytest.mark.parametrize("way", titan_rank.WAYS)
def test_two_ranks_train_as_one(way: str, trained: Path, models: list[Path]) -> None:
    for model in models:
        check_same(trained / "two" / way / model.name, trained / "one" / model.name, model)
