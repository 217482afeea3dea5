"""torchtitan is told its device before its other modules copy it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import consumers.trainer.titan
from consumers.trainer.titan.world import join_world
from schemas import ConfigError

FOLDER = Path(consumers.trainer.titan.__file__).parent
USERS = sorted(path for path in FOLDER.glob("*.py") if re.search(r"^from torchtitan", path.read_text(), re.MULTILINE))


def test_some_modules_use_torchtitan() -> None:
    assert FOLDER / "model.py" in USERS


@pytest.mark.parametrize("module", USERS, ids=lambda path: path.stem)
def test_the_device_is_set_before_torchtitan_is_imported(module: Path) -> None:
    source = module.read_text()
    first = source.index("\nfrom torchtitan")
    assert re.search(r"^from \. ?(import )?device", source[:first], re.MULTILINE), (
        f"import .device first in {module.name}"
    )


@pytest.mark.parametrize(("cuda", "named"), [(None, "0"), ("12.8", ""), ("12.8", "-1")])
def test_who_names_no_gpu_trains_on_the_cpu(cuda: str | None, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert join_world().device.type == "cpu"


def test_a_gpu_that_is_named_and_not_there_is_no_reason_to_train_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=r"names 0,1, and PyTorch \(for CUDA 12\.8\) finds no GPU"):
        join_world()
