"""A message's headers, as they travel and as they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import nats.errors

STATUS, DESCRIPTION = "Status", "Description"
"""Under these names stands what the server says in the first line of a message of its own."""
_FIRST = b"NATS/1.0"
_BLANK = " \t\n\r\x0b\x0c"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ONE_LINE = {ord("\r"): " ", ord("\n"): " "}


class Headers(Mapping[str, str]):
    """Headers as they came, read when somebody looks at them: of a rollout, nobody does while all is well."""

    __slots__ = ("_block", "_fields")

    def __init__(self, block: bytes = b"") -> None:
        self._block = block
        self._fields: dict[str, str] | None = None

    @property
    def _read(self) -> dict[str, str]:
        if self._fields is None:
            self._fields = _fields_of(self._block)
        return self._fields

    def __getitem__(self, name: str) -> str:
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    def __repr__(self) -> str:
        return f"Headers({self._read!r})"


def _fields_of(block: bytes) -> dict[str, str]:
    """As nats-py's, which looks at each character of each name."""
    first, _, rest = block.partition(b"\r\n")
    status, _, description = first.removeprefix(_FIRST).strip().decode("utf-8", "replace").partition(" ")
    fields = {STATUS: status} if status.isascii() and status.isdigit() else {}
    if description:
        fields[DESCRIPTION] = description
    for line in rest.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        name = name.strip(_BLANK)
        if colon and name.isascii() and len(name.split(None, 1)) < 2:
            fields[name] = value.strip(_BLANK)
    return fields


def header_block(headers: Mapping[str, str]) -> bytes:
    """The headers as they travel; a line break in a value becomes a space. Raises BadHeaderError for a bad name."""
    _require_legible(tuple(headers))
    if not "".join(headers.values()).isprintable():
        headers = {name: value.strip().translate(_ONE_LINE) for name, value in headers.items()}
    lines = [f"{name}: {value.strip()}" for name, value in headers.items()]
    return "\r\n".join(("NATS/1.0", *lines, "\r\n")).encode()


@lru_cache(maxsize=256)
def _require_legible(names: tuple[str, ...]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise nats.errors.BadHeaderError(name)
