"""Dead letters: a message that cannot be used, whole, with the reason, in DEAD."""

from __future__ import annotations

import logging

from schemas import Dead, StreamSpec

from .connection import Bus
from .publication import StreamFull
from .stream import Logged

log = logging.getLogger("headrace.bus")
MOST_HEADER_BYTES = 32 * 1024
"""A letter has room for so much beside the largest payload. The server takes 64 KiB; ours are less than 1 KiB."""
MOST_REASON = 1200


async def bury(bus: Bus, message: Logged, spec: StreamSpec, reason: str) -> None:
    """Put a message of ``spec``'s stream that cannot be used into DEAD; returns when it is there.

    Where DEAD is full, that is logged, and the message is only where it was: bad messages must not stop who reads
    good ones. Raises PublishFailed where DEAD is missing or not ours to publish to.
    """
    log.error("message %d of %s is put into DEAD: %s", message.sequence, spec.name(bus.run), reason)
    try:
        await bus.publish(dead_letter(bus, message, spec, reason), wait_for_room=False)
    except StreamFull as error:
        log.error("message %d of %s has no dead letter: %s", message.sequence, spec.name(bus.run), error)


def dead_letter(bus: Bus, message: Logged, spec: StreamSpec, reason: str) -> Dead:
    """The letter that says why ``message`` cannot be used, and fits into a message whatever that one holds."""
    headers = {_legible(name): _legible(value) for name, value in message.headers.items()}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if size > MOST_HEADER_BYTES:
        headers, reason = {}, f"{reason[:MOST_REASON]} (its headers of {size} bytes are left out here)"
    return Dead(
        run=bus.run,
        stream=spec.kind,
        sequence=message.sequence,
        subject=_legible(message.subject),
        headers=headers,
        payload=message.payload,
        reason=reason[: MOST_REASON + 100],
        by=bus.source,
    )


def _legible(text: str) -> str:
    """``text`` as an event can carry it: without halves of surrogate pairs, which stand for bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode()
