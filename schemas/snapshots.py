"""JSON Schemas of all events, committed as ``snapshots/<tag>.json``, and the check that they only grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .errors import HeadraceError
from .events import EVENT_TYPES, event_tag

SNAPSHOTS = Path(__file__).parent / "snapshots"
JsonSchema = dict[str, Any]


class _Definition(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of one definition of a schema."""

    properties: dict[str, Any] = {}
    required: list[str] = []
    prefix_items: list[Any] = []
    min_items: int = 0


class _Snapshot(msgspec.Struct, frozen=True):
    """What is read of a whole one."""

    definitions: dict[str, _Definition] = msgspec.field(name="$defs")


def schemas() -> dict[str, JsonSchema]:
    """Event tag to its JSON Schema, as the code has it now."""
    return {event_tag(kind): msgspec.json.schema(kind) for kind in EVENT_TYPES}


def export(folder: Path = SNAPSHOTS) -> list[Path]:
    """Write every schema to ``folder``; returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for tag, schema in schemas().items():
        path = folder / f"{tag}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(schema, order="sorted"), indent=2) + b"\n")
        written.append(path)
    return written


def check(folder: Path = SNAPSHOTS, current: dict[str, JsonSchema] | None = None) -> list[str]:
    """What would make an old payload unreadable, one line each; empty when all is well.

    A field may be added with a default, and a choice of words may get another word. Removing a field, retyping
    it, requiring a new one, dropping an event type, or forgetting to export is a fault.
    Raises HeadraceError for a snapshot that is damaged or cannot be read.
    """
    now = schemas() if current is None else current
    recorded = {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}
    faults = [f"{tag}: the event type is gone" for tag in recorded if tag not in now]
    for tag, schema in now.items():
        if tag not in recorded:
            faults.append(f"{tag}: no snapshot: run `headrace schemas export` and commit it")
        elif recorded[tag] != schema:
            breaking = list(_breaking_changes(recorded[tag], schema))
            faults += [f"{tag}: {fault}" for fault in breaking]
            if not breaking:
                faults.append(f"{tag}: grew since its snapshot: run `headrace schemas export` and commit it")
    return faults


def _read(path: Path) -> JsonSchema:
    try:
        schema: JsonSchema = msgspec.json.decode(path.read_bytes())
        msgspec.convert(schema, _Snapshot)
    except (OSError, msgspec.MsgspecError) as error:
        raise HeadraceError(
            f"{path} is no snapshot of an event's schema ({error}): restore it from version control, or remove it if "
            "it never was one"
        ) from None
    return schema


def _breaking_changes(old: JsonSchema, new: JsonSchema) -> Iterator[str]:
    for name, old_def in old["$defs"].items():
        new_def = new["$defs"].get(name)
        if new_def is None:
            yield f"{name} is gone"
        elif "prefixItems" in old_def:
            yield from _breaking_items(name, old_def, new_def)
        else:
            yield from _breaking_fields(name, old_def, new_def)


def _breaking_fields(name: str, old: JsonSchema, new: JsonSchema) -> Iterator[str]:
    old_fields, new_fields = old.get("properties", {}), new.get("properties", {})
    for field, old_type in old_fields.items():
        if field not in new_fields:
            yield f"{name}.{field} was removed"
        elif not _still_reads(old_type, new_fields[field]):
            yield f"{name}.{field} was retyped"
    for field in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield f"{name}.{field} became required: give it a default"


def _breaking_items(name: str, old: JsonSchema, new: JsonSchema) -> Iterator[str]:
    old_items, new_items = old["prefixItems"], new.get("prefixItems", [])
    if len(new_items) < len(old_items) or not all(map(_still_reads, old_items, new_items)):
        yield f"{name}: its positions changed"
    if new.get("minItems", 0) > old.get("minItems", 0):
        yield f"{name}: a new position became required: give it a default"


def _still_reads(old: Any, new: Any) -> bool:
    """Whether ``new`` is the same type as ``old``, except that it may allow more words where only some are allowed."""
    if isinstance(old, dict) and isinstance(new, dict):
        old, new = _shape(old), _shape(new)
        return old.keys() == new.keys() and all(
            set(old[key]) <= set(new[key]) if key == "enum" else _still_reads(old[key], new[key]) for key in old
        )
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_still_reads, old, new))
    return bool(old == new)


def _shape(schema: JsonSchema) -> JsonSchema:
    """Its constraints: what only describes a field is left out."""
    return {key: value for key, value in schema.items() if key not in ("description", "default", "title")}
