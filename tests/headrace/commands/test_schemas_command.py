from __future__ import annotations

from pathlib import Path

import msgspec

from schemas import EVENT_TYPES
from tests.headrace.conftest import Headrace


def test_snapshots_that_come_with_the_code_are_current(headrace: Headrace) -> None:
    assert headrace("schemas", "check").code == 0


def test_export_then_check_agree(tmp_path: Path, headrace: Headrace) -> None:
    told = headrace("schemas", "export", tmp_path, "--json")
    assert told.code == 0
    assert len(msgspec.json.decode(told.out)["written"]) == len(EVENT_TYPES)
    told = headrace("schemas", "check", tmp_path, "--json")
    assert told.code == 0
    assert msgspec.json.decode(told.out) == {"events": len(EVENT_TYPES), "faults": []}


def test_check_fails_where_a_field_is_gone_and_names_it(tmp_path: Path, headrace: Headrace) -> None:
    headrace("schemas", "export", tmp_path)
    path = tmp_path / "step.v1.json"
    path.write_text(path.read_text().replace('"number"', '"gone"'))
    told = headrace("schemas", "check", tmp_path)
    assert told.code == 1
    assert "step.v1: Step.gone was removed" in told.out.splitlines()


def test_folder_that_is_not_there_is_told(tmp_path: Path, headrace: Headrace) -> None:
    told = headrace("schemas", "check", tmp_path / "none")
    assert told.code == 1
    assert "headrace schemas export" in told.err
