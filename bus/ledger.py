"""The fence: one writer of the ledger at a time, and each append either in or not in, with no doubt left.

Each append carries the expected last sequence of the stream, the writer's random id and a digest of the body, and
no message id: with one, a server may answer a lost race with a duplicate's acknowledgement (three replicas do,
one does not), for another writer's different payload too. Only a positive, non-duplicate acknowledgement is
success. After anything else the stream's last message, read from its leader, decides.
"""

from __future__ import annotations

import asyncio
import logging

from schemas import LEDGER, BusError, Event, Fenced

from .answers import Unanswered
from .connection import Bus
from .publication import DIGEST, WRITER, Publication, Published, WrongSequence, why
from .stream import Logged

log = logging.getLogger("headrace.bus")


class Ledger:
    """A writer of the ledger, from the sequence at which it was opened."""

    def __init__(self, bus: Bus, writer: str) -> None:
        """``writer``: random, new for each process; two with the same one would not see each other."""
        self._bus = bus
        self.writer = writer
        self._last: int | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def last_sequence(self) -> int:
        """Where the ledger ends as far as this writer knows; a message after it fences it at its next append."""
        if self._last is None:
            raise BusError("the ledger is not open, or an append to it was abandoned: open it, and read it again")
        return self._last

    async def open(self) -> None:
        """Take the stream's end as ours to continue. Read the ledger up to ``last_sequence``, then append a term."""
        self._last = (await self._bus.state(LEDGER)).last_sequence

    async def append(self, event: Event) -> int:
        """Append ``event`` directly after what this writer knows, and return its sequence.

        Waits out lost connections, server restarts and a full stream, with a log line each 10 s.
        Raises Fenced, naming the other, where another writer appended: stop, and do not start again. Raises
        PublishFailed as Bus.publish does. An append that is cancelled leaves the ledger closed.
        """
        async with self._one_at_a_time:
            expected, self._last = self.last_sequence, None
            sequence = await self._append(event, expected)
            self._last = sequence
            return sequence

    async def _append(self, event: Event, expected: int) -> int:
        publication = Publication(self._bus.wire, event, source=self._bus.source, writer=self.writer)
        with self._bus.publishing(publication.what) as patience:
            while True:
                try:
                    answer = await publication.send(expected_last=expected)
                except (Unanswered, WrongSequence) as error:
                    reason = str(error)
                else:
                    if isinstance(answer, Published) and not answer.duplicate:
                        patience.rewarded()
                        return answer.sequence
                    reason = "acknowledged as a duplicate" if isinstance(answer, Published) else why(answer, LEDGER)
                last = await self._bus.last(LEDGER)
                if last is not None and last.sequence > expected and self._is_ours(last, publication.digest):
                    log.info("%s: found committed at %d after: %s", publication.what, last.sequence, reason)
                    return last.sequence
                if (last.sequence if last else 0) != expected:
                    raise _fenced(last, expected, self.writer)
                await patience.pause(reason)

    def _is_ours(self, message: Logged, digest: str) -> bool:
        return message.headers.get(WRITER) == self.writer and message.headers.get(DIGEST) == digest


def _fenced(last: Logged | None, expected: int, writer: str) -> Fenced:
    if last is None:
        return Fenced(f"the ledger is empty, and {expected} messages were in it: another stream has taken its place")
    other, source = last.headers.get(WRITER, "unknown"), last.headers.get("ce-source", "unknown")
    return Fenced(
        f"another writer owns the ledger: message {last.sequence} is of {source} (writer {other}), and ours "
        f"(writer {writer}) was to follow {expected}: this one stops; let the other go on, or stop it first"
    )
