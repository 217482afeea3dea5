"""Messages as they are read from a stream, for tests of what is done with them."""

from __future__ import annotations

from bus import Logged
from schemas import Event, encode, headers_of, subject_of

TIME = 1_796_000_000.25
"""2026-11-30 00:53:20.250 UTC."""


def logged(event: Event, *, sequence: int = 1, time: float = TIME, source: str = "generator/gen-0") -> Logged:
    return Logged(
        sequence=sequence,
        time=time,
        subject=subject_of(event),
        headers=headers_of(event, source=source),
        payload=encode(event),
        event=event,  # type: ignore[arg-type]
        invalid=None,
    )


def unreadable(*, sequence: int = 1, reason: str = "not a known event: Input data was truncated") -> Logged:
    return Logged(
        sequence=sequence,
        time=TIME,
        subject="hr.demo.rollout.reverse",
        headers={},
        payload=b"",
        event=None,
        invalid=reason,
    )
