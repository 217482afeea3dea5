from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas import EVENT_TYPES, event_tag
from schemas.snapshots import SNAPSHOTS, check, export, schemas

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(tmp_path)
    return tmp_path


def changed(tag: str, change: Change) -> dict[str, Any]:
    """The schemas as they would be if the code of one event had been changed."""
    now = copy.deepcopy(schemas())
    change(now[tag]["$defs"])
    return now


def removed(defs: dict[str, Any]) -> None:
    del defs["Rollout"]["properties"]["swaps_during"]


def retyped(defs: dict[str, Any]) -> None:
    defs["Rollout"]["properties"]["group"] = {"type": "string"}


def narrowed(defs: dict[str, Any]) -> None:
    defs["Rollout"]["properties"]["group"]["minimum"] = 1


def word_removed(defs: dict[str, Any]) -> None:
    defs["Failure"]["properties"]["kind"]["enum"].remove("stale")


def newly_required(defs: dict[str, Any]) -> None:
    defs["Rollout"]["properties"]["colour"] = {"type": "string"}
    defs["Rollout"]["required"].append("colour")


def default_removed(defs: dict[str, Any]) -> None:
    defs["Rollout"]["required"].append("metrics")


def nested_field_retyped(defs: dict[str, Any]) -> None:
    defs["Timings"]["properties"]["total_s"] = {"type": "integer"}


def nested_struct_removed(defs: dict[str, Any]) -> None:
    del defs["Timings"]


def position_inserted(defs: dict[str, Any]) -> None:
    defs["Turn"]["prefixItems"].insert(1, {"type": "string"})


def position_removed(defs: dict[str, Any]) -> None:
    defs["Span"]["prefixItems"].pop()


def position_required(defs: dict[str, Any]) -> None:
    defs["Turn"]["prefixItems"].append({"type": "string"})
    defs["Turn"]["minItems"] = 5


def became_an_object(defs: dict[str, Any]) -> None:
    defs["Span"] = {"type": "object", "properties": {}, "required": []}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (removed, "Rollout.swaps_during was removed"),
        (retyped, "Rollout.group was retyped"),
        (narrowed, "Rollout.group was retyped"),
        (word_removed, "Failure.kind was retyped"),
        (newly_required, "Rollout.colour became required: give it a default"),
        (default_removed, "Rollout.metrics became required: give it a default"),
        (nested_field_retyped, "Timings.total_s was retyped"),
        (nested_struct_removed, "Timings is gone"),
        (position_inserted, "Turn: its positions changed"),
        (position_removed, "Span: its positions changed"),
        (position_required, "Turn: a new position became required: give it a default"),
        (became_an_object, "Span: its positions changed"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_change_that_makes_old_payloads_unreadable_is_a_fault(folder: Path, change: Change, fault: str) -> None:
    assert check(folder, changed("rollout.v1", change)) == [f"rollout.v1: {fault}"]


def field_with_default(defs: dict[str, Any]) -> None:
    defs["Rollout"]["properties"]["colour"] = {"type": "string", "default": ""}


def word_added(defs: dict[str, Any]) -> None:
    defs["Failure"]["properties"]["kind"]["enum"].append("bored")


def position_with_default(defs: dict[str, Any]) -> None:
    defs["Turn"]["prefixItems"].append({"type": "string", "default": ""})


def required_got_a_default(defs: dict[str, Any]) -> None:
    defs["Rollout"]["required"].remove("attempt")
    defs["Rollout"]["properties"]["attempt"]["default"] = 1


def described_anew(defs: dict[str, Any]) -> None:
    defs["Rollout"]["description"] = "In other words."


@pytest.mark.parametrize(
    "change",
    [field_with_default, word_added, position_with_default, required_got_a_default, described_anew],
    ids=lambda change: change.__name__,
)
def test_growth_is_no_fault_but_must_be_exported(folder: Path, change: Change) -> None:
    grown = "rollout.v1: grew since its snapshot: run `headrace schemas export` and commit it"
    assert check(folder, changed("rollout.v1", change)) == [grown]


def test_event_type_that_is_gone_is_a_fault(folder: Path) -> None:
    now = schemas()
    del now["closed.v1"]
    assert check(folder, now) == ["closed.v1: the event type is gone"]


def test_event_type_without_a_snapshot_asks_to_export(folder: Path) -> None:
    (folder / "closed.v1.json").unlink()
    assert check(folder) == ["closed.v1: no snapshot: run `headrace schemas export` and commit it"]


def test_committed_snapshots_are_those_of_the_code() -> None:
    assert check() == []
    assert {path.stem for path in SNAPSHOTS.glob("*.json")} == {event_tag(kind) for kind in EVENT_TYPES}


def test_export_writes_the_same_bytes_each_time(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(export(folder)) == len(EVENT_TYPES)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
