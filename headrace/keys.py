"""Dotted keys of nested settings: setting one from the command line, and naming what is wrong with one.

msgspec refuses an unknown key or a wrong type by itself; here its refusal gets the whole key, the value, and
the key or value that was probably meant.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from schemas import ConfigError
from schemas.settings import Settings

_REFUSED = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<where>[^`]*)`)?$", re.DOTALL)


def override(root: type[Settings], data: dict[str, Any], text: str) -> str:
    """Set ``KEY=VALUE`` in ``data``, in place, and return the key.

    The value is read as TOML where it is TOML and the key does not want text (a run may be called 2026-11-29).
    Raises ConfigError where ``text`` has no ``=`` or the key leads through something that holds no keys.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {text!r} is not KEY=VALUE: write for example --set trainer.lr=1e-5")
    *parents, last = key.split(".")
    place: Any = data
    for depth, name in enumerate(parents):
        place = _step_into(place, name, ".".join(parents[:depth]), key)
    parsed = _toml_value(value, as_text=_wants_text(root, key))
    if isinstance(place, list):
        place[_index(place, last, ".".join(parents), key)] = parsed
    elif isinstance(place, dict):
        place[last] = parsed
    else:
        raise ConfigError(f"--set {key}: {'.'.join(parents)} is a value, not a table; there is nothing below it")
    return key


def check_keys(root: type[Settings], data: dict[str, Any]) -> None:
    """Raise ConfigError with the whole name of the first unknown key in ``data``, and the one nearest to it."""
    for key, table in _unknown(root, data, ""):
        prefix, _, name = key.rpartition(".")
        remedy = _nearest(root, table, prefix, name)
        raise ConfigError(f"{key} is an unknown key: {remedy}")


def what_is_wrong(root: type[Settings], data: dict[str, Any], refusal: str) -> str:
    """The ``refusal`` of msgspec in terms of keys: the key, the value it has, what was expected, and an example."""
    match = _REFUSED.match(refusal)
    assert match is not None  # the pattern matches any text
    what, where = match["what"], (match["where"] or "").lstrip(".").replace("[", ".").replace("]", "").lstrip(".")
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return _missing(where, missing[1])
    value = json.dumps(_value_at(data, where), default=str)
    value = value if len(value) <= 60 else f"{value[:57]}..."
    what = _in_toml_words(what)
    if choices := _choices(root, where):
        what = f"expected one of {', '.join(json.dumps(choice) for choice in choices)}"
    return f"{where} = {value}: {what}{_example(root, where)}"


def _in_toml_words(what: str) -> str:
    """What msgspec says in the words of JSON, in those of TOML."""
    what = (what[:1].lower() + what[1:]).replace("`", "")
    return what.replace("object", "table").replace("array", "list")


def _missing(where: str, name: str) -> str:
    if not where:
        table = "[[environments]]" if name == "environments" else f"[{name}]"
        return f"the table {table} is missing: add it, as in configs/demo.toml"
    return f"{where}.{name} is missing: add it, or give --set {where}.{name}=VALUE"


def _example(root: type[Settings], key: str) -> str:
    field = _field(root, key)
    if field is None or field.required:
        return ""
    if field.default is msgspec.NODEFAULT or isinstance(field.default, msgspec.Struct):
        return ""
    default = msgspec.to_builtins(field.default)
    return f"; the default is {json.dumps(default)}"


def _toml_value(text: str, *, as_text: bool) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    # More than one key: the text had a line break. Dates are TOML, and no setting is one.
    if len(parsed) > 1 or not isinstance(value, str | bool | int | float | list | dict):
        return text
    return text if as_text and not isinstance(value, str) else value


def _step_into(place: Any, name: str, above: str, key: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, name, above, key)]
    if isinstance(place, dict):
        return place.setdefault(name, {})
    raise ConfigError(f"--set {key}: {above} is a value, not a table; there is nothing below it")


def _index(place: list[Any], name: str, above: str, key: str) -> int:
    if name.isdecimal() and int(name) < len(place):
        return int(name)
    known = f"0 to {len(place) - 1}" if len(place) > 1 else "0" if place else "none: add one to the file"
    raise ConfigError(f"--set {key}: {above} is a list, and {name!r} is none of its indices: use {known}")


def _value_at(data: Any, key: str) -> Any:
    for name in filter(None, key.split(".")):
        try:
            data = data[int(name)] if isinstance(data, list) else data[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return data


def _tables(kind: type[Settings]) -> Iterator[tuple[str, type[Settings] | None, bool]]:
    """Each field of ``kind``: its name, the settings below it, and whether it is a list of those."""
    for field in msgspec.structs.fields(kind):
        item = get_args(field.type)[0] if _is_list(field.type) else field.type
        below = item if isinstance(item, type) and issubclass(item, Settings) else None
        yield field.name, below, _is_list(field.type)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list


def _unknown(kind: type[Settings], data: Any, prefix: str) -> Iterator[tuple[str, type[Settings]]]:
    """Dotted keys in ``data`` that ``kind`` does not have, each with the table it stands in."""
    if not isinstance(data, dict):
        return  # a wrong type: msgspec says so
    tables = {name: (below, is_list) for name, below, is_list in _tables(kind)}
    for name, value in data.items():
        if name not in tables:
            yield f"{prefix}{name}", kind
            continue
        below, is_list = tables[name]
        if below is None:
            continue
        if is_list and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _unknown(below, item, f"{prefix}{name}.{index}.")
        elif not is_list:
            yield from _unknown(below, value, f"{prefix}{name}.")


def _nearest(root: type[Settings], table: type[Settings], prefix: str, name: str) -> str:
    """A remedy: the key of the same table that is spelled nearly so, else the like key of another, else all keys."""
    here = [field for field, _, _ in _tables(table)]
    dotted = f"{prefix}." if prefix else ""
    if near := difflib.get_close_matches(name, here, n=1):
        return f"did you mean {dotted}{near[0]}?"
    everywhere = list(_all_keys(root, ""))
    if same := [key for key in everywhere if key.rpartition(".")[2] == name]:
        return f"did you mean {same[0]}?"
    if near := difflib.get_close_matches(f"{dotted}{name}", everywhere, n=1, cutoff=0.75):
        return f"did you mean {near[0]}?"
    return f"{prefix or 'a configuration'} has {', '.join(here)}"


def _all_keys(kind: type[Settings], prefix: str) -> Iterator[str]:
    for name, below, is_list in _tables(kind):
        if below is None:
            yield f"{prefix}{name}"
        else:
            yield from _all_keys(below, f"{prefix}{name}.{'0.' if is_list else ''}")


def _field(root: type[Settings], key: str) -> msgspec.structs.FieldInfo | None:
    """The field that ``key`` names; None for unknown keys, and for what an environment's args hold."""
    kind: type[Settings] | None = root
    field: msgspec.structs.FieldInfo | None = None
    for name in key.split("."):
        if kind is None:
            return None
        if field is not None and _is_list(field.type) and name.isdecimal():
            continue
        field = next((each for each in msgspec.structs.fields(kind) if each.name == name), None)
        kind = next((below for each, below, _ in _tables(kind) if each == name), None)
        if field is None:
            return None
    return field


def _choices(root: type[Settings], key: str) -> tuple[str, ...]:
    """The values that the field takes, where it is a Literal."""
    field = _field(root, key)
    return get_args(field.type) if field is not None and get_origin(field.type) is Literal else ()


def _wants_text(root: type[Settings], key: str) -> bool:
    field = _field(root, key)
    return field is not None and (field.type is str or bool(_choices(root, key)))
