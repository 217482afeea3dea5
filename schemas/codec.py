"""Events to and from the bus: binary-mode CloudEvents, attributes as ``ce-`` headers and the payload raw.

Headers repeat what people and filters need; they are hints. What is decided is decided on the payload.
Source: CloudEvents NATS protocol binding 1.0.2, section 3.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from .errors import EventInvalid
from .events import (
    EVENT_TYPES,
    AnyEvent,
    Closed,
    Control,
    Dead,
    Evaluated,
    Event,
    GroupTask,
    Played,
    Rollout,
    Step,
    Weights,
    event_name,
    event_tag,
)
from .validation import validate

E = TypeVar("E", bound=Event)

JSON, MSGPACK = "application/json", "application/msgpack"
MESSAGE_ID = "Nats-Msg-Id"
_BY_TAG: dict[str, type[Event]] = {event_tag(kind): kind for kind in EVENT_TYPES}
_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
_json_decoder = msgspec.json.Decoder(AnyEvent)
_msgpack_decoder = msgspec.msgpack.Decoder(AnyEvent)


def content_type(kind: Event | type[Event]) -> str:
    """MessagePack for events that carry bytes, JSON for all others."""
    kind = kind if isinstance(kind, type) else type(kind)
    return MSGPACK if kind in (Rollout, Evaluated, Dead) else JSON


def encode(event: Event) -> bytes:
    """The payload of a valid event. Raises EventInvalid for an event that breaks a rule.

    A struct's constructor checks no types and no bounds, so what was encoded is decoded once before anyone gets it;
    else every reader would have to refuse the message. Of a rollout that is done without its arrays, which are bytes.
    """
    encoder = _msgpack_encoder if content_type(event) == MSGPACK else _json_encoder
    validate(event)
    try:
        payload = encoder.encode(event)
        light = isinstance(event, Played) and type(event.tokens) is type(event.logprobs) is bytes
        _read(encoder.encode(msgspec.structs.replace(event, tokens=b"", logprobs=b"")) if light else payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventInvalid(f"cannot be encoded: {error}") from None
    return payload


def decode(payload: bytes) -> AnyEvent:
    """The valid event in ``payload``, whichever of the two encodings it has.

    Raises EventInvalid naming what was expected, what came, and where.
    """
    event = _read(payload)
    validate(event)
    return event


def _read(payload: bytes) -> AnyEvent:
    """The event in ``payload``, its types and bounds checked, but not what ``validate`` checks."""
    # A JSON object begins with "{"; as MessagePack that byte is the integer 123, which is no event.
    decoder = _json_decoder if payload[:1] == b"{" else _msgpack_decoder
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EventInvalid(f"not a known event: {error}") from None


def decode_as(payload: bytes, kind: type[E]) -> E:
    """The event in ``payload``, which must be of one type. Raises EventInvalid otherwise."""
    event = decode(payload)
    if not isinstance(event, kind):
        raise EventInvalid(f"expected {event_tag(kind)}, got {event_tag(event)}")
    return event


def message_id(event: Event) -> str | None:
    """The id under which the same event, sent again, is the same message; None for ledger events.

    The ledger uses no message id: a duplicate acknowledgement would hide a lost race (see bus/ledger.py).
    """
    match event:
        case GroupTask(group=group):
            return f"task.{event.run}.{group}"
        case Rollout(group=group, member=member):
            return f"rollout.{event.run}.{group}.{member}"
        case Evaluated(version=version, env=env, task=task, sample=sample):
            return f"evaluated.{event.run}.{version}.{env}.{task}.{sample}"
        case Dead(stream=stream, sequence=sequence) if sequence:
            return f"dead.{event.run}.{stream}.{sequence}"
        case _:
            return None


def headers_of(event: Event, *, source: str, now: datetime | None = None) -> dict[str, str]:
    """CloudEvents attributes and hints for people, as NATS headers.

    ``source`` is ``<role>/<id>`` of the publisher.
    """
    identity = message_id(event)
    headers = {
        "ce-specversion": "1.0",
        "ce-type": f"headrace.{event_tag(event)}",
        "ce-source": f"/{event.run}/{source}",
        "ce-id": identity or f"{event_name(event)}.{event.run}.{_body_id(event)}",
        "ce-time": (now or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "ce-datacontenttype": content_type(event),
        "hr-run": event.run,
    }
    if identity:
        headers[MESSAGE_ID] = identity
    headers.update(_hints(event))
    return headers


def _body_id(event: Event) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(event)).hexdigest()[:16]


def _hints(event: Event) -> dict[str, str]:
    match event:
        case GroupTask():
            return {"hr-env": event.env, "hr-group": str(event.group), "hr-least-version": str(event.least_version)}
        case Rollout():
            return {"hr-env": event.env, "hr-group": str(event.group), "hr-member": str(event.member)} | _outcome(event)
        case Evaluated(version=version, task=task, sample=sample):
            identity = {"hr-version": str(version), "hr-task": str(task), "hr-sample": str(sample)}
            return {"hr-env": event.env} | identity | _outcome(event)
        case Closed():
            return {"hr-group": str(event.group), "hr-reason": event.reason}
        case Step():
            return {"hr-step": str(event.number)}
        case Weights():
            return {"hr-version": str(event.version), "hr-sha256": event.sha256}
        case Control():
            return {"hr-action": event.action}
        case Dead():
            reason = " ".join(event.reason.split())[:200]  # a header is one line
            return {"hr-reason": reason} if reason else {}
    return {}


def _outcome(played: Played) -> dict[str, str]:
    hints = {"hr-tokens": str(len(played.tokens) // 4), "hr-generator": played.generator}
    if played.spans:
        hints["hr-version-min"] = str(played.least_version)
        hints["hr-version-max"] = str(played.greatest_version)
    if played.reward is not None:
        hints["hr-reward"] = f"{played.reward:.4f}"
    if played.error is not None:
        hints["hr-error"] = played.error.kind
    return hints


def as_json(event: Event, headers: Mapping[str, str] | None = None) -> bytes:
    """One line of JSON for people and programs: packed arrays become lists."""
    fields = msgspec.to_builtins(event, builtin_types=(bytes,))
    match event:
        case Played():
            fields["tokens"] = event.token_ids().tolist()
            fields["logprobs"] = [round(float(value), 6) for value in event.logprob_values()]
        case Dead():
            fields["payload"] = event.payload.hex()
    if headers is not None:
        fields["headers"] = dict(headers)
    return _json_encoder.encode(fields)
