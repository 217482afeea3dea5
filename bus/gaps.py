"""Holes in a stream: messages that are missing although no purge took them.

A purge takes a stream's beginning, so whatever is missing in its middle was deleted by hand or lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from schemas import LogGap

from .stream import current_state
from .wire import Wire

log = logging.getLogger("headrace.bus")
MOST_NAMED = 5
"""Holes that a message names; a damaged stream may have thousands."""


async def require_whole(wire: Wire, stream: str, *, start: int) -> None:
    """Raise LogGap where messages from sequence ``start`` on are missing in the middle of ``stream``.

    Missing ones below ``start`` are reported in the log: nobody needs them now.
    """
    if (await current_state(wire, stream)).deleted == 0:
        return
    missing: list[int] = (await wire.api(f"STREAM.INFO.{stream}", {"deleted_details": True}))["state"]["deleted"]
    needed = [sequence for sequence in missing if sequence >= start]
    if needed:
        raise LogGap(
            f"{stream} has no messages {in_ranges(needed)}, and no purge explains it: restore the stream from a "
            "backup, or start a new run"
        )
    log.error(
        "%s has no messages %s, and no purge explains it: what goes on needs those from %d on, but steps before "
        "cannot be trained again", stream, in_ranges(missing), start,
    )  # fmt: skip


def in_ranges(sequences: Sequence[int]) -> str:
    """Ascending ``sequences`` in words: ``3, 7 to 9``."""
    ranges: list[list[int]] = []
    for sequence in sequences:
        if ranges and sequence == ranges[-1][1] + 1:
            ranges[-1][1] = sequence
        else:
            ranges.append([sequence, sequence])
    named = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:MOST_NAMED]]
    return ", ".join(named) + (f" and {len(ranges) - MOST_NAMED} more ranges" if len(ranges) > MOST_NAMED else "")
