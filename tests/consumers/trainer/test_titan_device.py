"""torchtitan is told its device before its other modules copy it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import consumers.trainer.titan

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
