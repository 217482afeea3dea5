"""Files of JSON lines, one object each, checked whole when they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from schemas import EnvironmentFault

SHOWN = 60
"""Characters of a line that an error quotes."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One object of the file."""

    number: int
    """Of the line in the file: 1, 2, ..."""
    fields: dict[str, Any]


def load_lines(path: Path) -> list[Line]:
    """The objects in ``path``, in order; empty lines are passed over.

    Raises EnvironmentFault, with the line's number, where the file cannot be read, is empty, holds something else
    than objects, or says the same twice.
    """
    lines = [Line(number=number, fields=_fields(path, number, text)) for number, text in _texts(path) if text.strip()]
    if not lines:
        raise EnvironmentFault(f"{path} is empty: write one JSON object a line into it")
    _check_repeated(path, lines)
    return lines


def _texts(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise EnvironmentFault(
            f"{path.absolute()} does not exist: correct environments.args.path, which is relative to the folder "
            "that Headrace is started in"
        ) from None
    except UnicodeDecodeError as error:
        number = path.read_bytes()[: error.start].count(b"\n") + 1
        raise EnvironmentFault(f"{path}, line {number} is not UTF-8 ({error.reason}): convert the file") from None
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be read ({error.strerror}): correct environments.args.path") from None
    # Not splitlines(): it also breaks at characters that JSON allows within a text.
    return list(enumerate(text.split("\n"), start=1))


def _fields(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        remedy = "correct the line"
        if number == 1 and text.lstrip().startswith("["):
            remedy = f"a whole array becomes lines by: jq -c '.[]' {path} > lines.jsonl"
        raise EnvironmentFault(
            f"{path}, line {number} is not JSON ({error}): {text.strip()[:SHOWN]!r}: {remedy}"
        ) from None
    if not isinstance(fields, dict):
        raise EnvironmentFault(
            f"{path}, line {number} is not a JSON object: {text.strip()[:SHOWN]!r}: write it as "
            '{"prompt": ..., "answer": ...}'
        )
    return fields


def _check_repeated(path: Path, lines: list[Line]) -> None:
    seen: dict[bytes, int] = {}
    repeats: list[tuple[int, int]] = []
    for line in lines:
        key = msgspec.json.encode(line.fields, order="sorted")
        first = seen.setdefault(key, line.number)
        if first != line.number:
            repeats.append((line.number, first))
    if repeats:
        number, first = repeats[0]
        more = f", and {len(repeats) - 1} more lines repeat others" if len(repeats) > 1 else ""
        raise EnvironmentFault(
            f"{path}, line {number} says the same as line {first}{more}: a task that is there twice counts twice, and "
            f"may be trained and held out; keep one of each: awk '!seen[$0]++' {path} > lines.jsonl"
        )
