"""What a stream holds: its messages, and its state, from its leader."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from schemas import AnyEvent, EventInvalid, decode, event_tag, subject_of

from .answers import ApiError, Unanswered
from .headers import Headers
from .patience import Patience
from .wire import Wire

NO_MESSAGE = 10037
ANYTHING = ">"


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a stream."""

    sequence: int
    time: float
    """When the server stored it, seconds since the epoch."""
    subject: str
    headers: Mapping[str, str]
    payload: bytes
    event: AnyEvent | None
    """None exactly where ``invalid`` says why."""
    invalid: str | None


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream holds, from its leader."""

    first_sequence: int
    """Everything below was purged; 1 above the last one where the stream is empty."""
    last_sequence: int
    """Of the last message that was ever stored; 0 where there was none."""
    messages: int
    bytes: int
    deleted: int
    """Messages missing between the first and the last."""


def event_in(payload: bytes, subject: str) -> tuple[AnyEvent | None, str | None]:
    """The event in ``payload``, published to ``subject``, or why there is none.

    An event of another run, or one that was published where others belong, is none: who may publish what depends on
    the subject.
    """
    try:
        event = decode(payload)
    except EventInvalid as error:
        return None, error.reason
    if (own := subject_of(event)) != subject:
        return None, f"it is a {event_tag(event)} of run {event.run!r}, which belongs to subject {own}"
    return event, None


async def stream_state(wire: Wire, stream: str) -> StreamState:
    """Raises ApiError where there is no such stream, Unanswered where nobody answers for some seconds."""
    info = await wire.api(f"STREAM.INFO.{stream}")
    if "cluster" in info and not info["cluster"].get("leader"):
        # Any copy answers then, and it may lag behind.
        raise Unanswered(f"stream {stream} has no leader at the moment")
    state = info["state"]
    return StreamState(
        first_sequence=state["first_seq"],
        last_sequence=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        deleted=state.get("num_deleted", 0),
    )


async def stored_message(wire: Wire, stream: str, query: dict[str, Any]) -> Logged | None:
    """The message that ``query`` names, from the stream's leader: never one that a replica lags behind.

    ``query``: ``{"last_by_subj": FILTER}`` or ``{"seq": LEAST, "next_by_subj": FILTER}``. None where there is none.
    """
    try:
        message = (await wire.api(f"STREAM.MSG.GET.{stream}", query))["message"]
    except ApiError as error:
        if error.fault.err_code == NO_MESSAGE:
            return None
        raise
    payload = msgspec.convert(message.get("data", ""), bytes, strict=True)
    event, invalid = event_in(payload, message["subject"])
    return Logged(
        sequence=message["seq"],
        time=epoch_s(message["time"]),
        subject=message["subject"],
        headers=Headers(msgspec.convert(message.get("hdrs", ""), bytes, strict=True)),
        payload=payload,
        event=event,
        invalid=invalid,
    )


def epoch_s(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()


async def current_state(wire: Wire, stream: str) -> StreamState:
    """As ``stream_state``, waiting for an answer for as long as it takes, with a log line now and then."""
    patience = Patience(f"asking for the state of {stream}")
    while True:
        try:
            return await stream_state(wire, stream)
        except Unanswered as error:
            await patience.pause(str(error))


async def purge(wire: Wire, stream: str, *, before: int) -> None:
    """Remove all messages below sequence ``before``, waiting as ``current_state`` does: twice is the same as once."""
    patience = Patience(f"purging {stream}")
    while True:
        try:
            await wire.api(f"STREAM.PURGE.{stream}", {"seq": before})
            return
        except Unanswered as error:
            await patience.pause(str(error))


async def from_leader(wire: Wire, stream: str, query: dict[str, Any]) -> Logged | None:
    """As ``stored_message``, waiting for an answer as ``current_state`` does."""
    patience = Patience(f"asking the leader of {stream}")
    while True:
        try:
            return await stored_message(wire, stream, query)
        except Unanswered as error:
            await patience.pause(str(error))
