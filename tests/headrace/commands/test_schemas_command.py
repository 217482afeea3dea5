from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Input data was truncated"),
        ('{"$defs": ', "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "Object missing required field `$defs`"),
        ('{"$defs": {"Step": {"properties": 5}}}', "Expected `object`, got `int`"),
    ],
)
def test_damaged_snapshot_is_named(text: str, reason: str, tmp_path: Path, headrace: Headrace) -> None:
    headrace("schemas", "export", tmp_path)
    (tmp_path / "step.v1.json").write_text(text)
    told = headrace("schemas", "check", tmp_path)
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith(f"headrace schemas: {tmp_path}/step.v1.json is no snapshot of an event's schema (")
    assert reason in told.err
    assert "): restore it from version control" in told.err
    assert len(told.err.splitlines()) == 1
