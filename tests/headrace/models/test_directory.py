from __future__ import annotations

import os
import subprocess
from pathlib import Path

from headrace.models.directory import new_directory


def test_what_a_killed_process_left_is_removed_and_a_live_ones_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f".tiny.{ended.pid}", f".tiny.{os.getppid()}", ".tiny.kept"):
        (tmp_path / name).mkdir()
    with new_directory(tmp_path / "tiny") as aside:
        (aside / "config.json").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f".tiny.{os.getppid()}", ".tiny.kept", "tiny"])
