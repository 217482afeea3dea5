"""The dead-letter sink: each message that could not be used, as one line of the log."""

from __future__ import annotations

import asyncio
import logging

from bus import Bus
from schemas import DEAD, Dead

from .following import following

log = logging.getLogger("headrace.dead")


def dead_letter_line(letter: Dead) -> str:
    """Where the message was, how large it is, who refused it, and why."""
    place = f"{letter.stream} {letter.sequence}" if letter.sequence else f"{letter.stream} (never stored)"
    reason = " ".join(letter.reason.split()) or "no reason given"
    return f"dead letter: {place}, subject {letter.subject}, {len(letter.payload)} bytes, by {letter.by}: {reason}"


async def run_dead(bus: Bus, stop: asyncio.Event) -> None:
    """Log each dead letter of a run, from the first one, until ``stop`` is set.

    Read with the stock tools: ``nats stream get <run>_DEAD SEQUENCE``.
    """
    async for logged in following(bus, DEAD, stop):
        if isinstance(logged.event, Dead):
            log.warning("%s", dead_letter_line(logged.event))
        else:
            log.warning("dead letter %d is itself no valid event: %s", logged.sequence, logged.invalid)
