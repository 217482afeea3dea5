"""Payloads of every version that was ever written can be read, and damaged ones are refused with a named reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import JSON, EventInvalid, as_json, content_type, decode, encode, event_tag
from schemas.snapshots import SNAPSHOTS

GOLDEN = Path(__file__).parent / "golden"
PAYLOADS = sorted([*GOLDEN.glob("*/*.json"), *GOLDEN.glob("*/*.msgpack")])
WHOLE = [path for path in PAYLOADS if path.with_suffix(".expect").exists()]
DAMAGED = [path for path in PAYLOADS if path.with_suffix(".error").exists()]


def case(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def is_part_of(old: Any, new: Any) -> bool:
    """Whether ``new`` says all that ``old`` said; fields with defaults may have been added since."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and is_part_of(value, new[key]) for key, value in old.items())
    return bool(old == new)


@pytest.mark.parametrize("path", WHOLE, ids=case)
def test_payload_of_any_version_reads_as_it_was_meant(path: Path) -> None:
    event = decode(path.read_bytes())
    expected = msgspec.json.decode(path.with_suffix(".expect").read_bytes())
    assert is_part_of(expected, msgspec.json.decode(as_json(event)))
    assert event_tag(event) == path.parent.name
    assert (path.suffix == ".json") == (content_type(event) == JSON)


@pytest.mark.parametrize("path", WHOLE, ids=case)
def test_what_was_read_can_be_sent_on(path: Path) -> None:
    event = decode(path.read_bytes())
    assert decode(encode(event)) == event


@pytest.mark.parametrize("path", DAMAGED, ids=case)
def test_damaged_payload_is_refused_with_its_reason(path: Path) -> None:
    with pytest.raises(EventInvalid) as refused:
        decode(path.read_bytes())
    assert str(refused.value) == path.with_suffix(".error").read_text(encoding="utf-8").rstrip("\n")


def test_each_payload_has_one_expectation() -> None:
    both = {case(path) for path in WHOLE} & {case(path) for path in DAMAGED}
    assert not both
    assert len(WHOLE) + len(DAMAGED) == len(PAYLOADS)
    beside = {path for path in GOLDEN.glob("*/*") if path.suffix in (".expect", ".error")}
    assert beside == {path.with_suffix(".expect") for path in WHOLE} | {path.with_suffix(".error") for path in DAMAGED}


@pytest.mark.parametrize("tag", [path.stem for path in sorted(SNAPSHOTS.glob("*.json"))])
def test_each_version_has_whole_and_damaged_payloads(tag: str) -> None:
    assert any(path.parent.name == tag for path in WHOLE)
    assert any(path.parent.name == tag for path in DAMAGED)
