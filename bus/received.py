"""A message as it came over the connection."""

from __future__ import annotations

import msgspec

from .headers import Headers

_SHORT = 9
"""Fields of a reply that names neither domain nor account."""


class Received(msgspec.Struct, frozen=True):
    """What a subscription is given."""

    subject: str
    reply: str
    """Where it is answered; empty where nobody waits for that."""
    data: bytes
    headers: Headers


class Origin(msgspec.Struct, frozen=True):
    """What a consumer says about a message that it hands out."""

    sequence: int
    """Of the message in its stream."""
    consumer_sequence: int
    """How many messages the consumer has handed out, this one included."""
    delivered: int
    """How often this one."""
    time: float
    """When it was stored, seconds since the epoch."""


def origin_of(reply: str) -> Origin:
    """What the reply of a delivered message says. Raises ValueError for a reply that no consumer makes.

    Source: nats-io/nats-architecture-and-design, ADR-15.
    """
    fields = reply.split(".")
    delivered, sequence, consumer_sequence, time_ns = fields[4:8] if len(fields) == _SHORT else fields[6:10]
    return Origin(int(sequence), int(consumer_sequence), int(delivered), int(time_ns) / 1e9)
