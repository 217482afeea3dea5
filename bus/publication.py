"""One event on its way into its stream: the bytes, and what the server says to them."""

from __future__ import annotations

import hashlib
import re

import msgspec

from schemas import BusError, Event, PublishFailed, StreamSpec, encode, event_tag, headers_of, stream_for, subject_of

from .answers import ApiError, Fault, Unanswered
from .topology import UNKNOWN_STREAM, largest_message_bytes
from .wire import Wire

WRITER, DIGEST = "hr-writer", "hr-digest"
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
ACK_TIMEOUT_S = 5.0
SLOW_BYTES_PER_S = 256 * 1024
"""Of a line that a message may still take to the server: what has not arrived cannot be acknowledged."""
ALIVE_S = 1.0
"""Most time for the question whether a server that has not acknowledged is there at all."""
TOO_LARGE, STREAM_FULL = 10054, 10077
WRONG_SEQUENCE = (10071, 10164)
# Seen with nats-server 2.15: a stream that met a full disk answers no publication until the server is started again.
STORES_NOTHING = (
    "the server is there but does not store it: look at its log; where its disk was full, make room and start it again"
)


_ROOM = {
    "ROLLOUTS": "raise log.max_gib and run headrace topology apply, or end the run",
    "TASKS": 'set log.keep = "checkpoints", which purges what no checkpoint needs, or end the run',
    "LEDGER": "its limit is fixed: end the run",
    "TELEMETRY": "it should discard the oldest: run headrace topology apply",
    "DEAD": "read the letters, then purge it: nats stream purge <run>_DEAD",
    "CONTROL": "it should discard the oldest: run headrace topology apply",
    "EVALUATIONS": "raise log.max_gib and run headrace topology apply, or evaluate less (evaluation.every_steps)",
    "WEIGHTS": "raise weights.max_gib and run headrace topology apply, or lower weights.keep",
}
"""How each stream gets room again."""


class WrongSequence(BusError):
    """The stream does not end where the publisher thought; ``last`` is where it does, if the server said so."""

    def __init__(self, message: str, last: int | None) -> None:
        super().__init__(message)
        self.last = last


class StreamFull(PublishFailed):
    """The stream has no room, and whoever publishes does not wait for some."""


class Published(msgspec.Struct, frozen=True):
    """A positive acknowledgement."""

    sequence: int
    duplicate: bool
    """The stream had a message of this id already, at ``sequence``; nothing was stored."""


class Publication:
    """An event encoded once, so that each attempt sends the same bytes.

    Raises EventInvalid for an invalid event, PublishFailed for one that no stream takes for its size.
    """

    def __init__(self, wire: Wire, event: Event, *, source: str, writer: str | None = None) -> None:
        """``writer`` signs it with its id and a digest of the payload: see ledger.py."""
        self._wire = wire
        self.spec: StreamSpec = stream_for(event)
        self.stream = self.spec.name(event.run)
        self.what = f"publishing {event_tag(event)} to {self.stream}"
        self._subject = subject_of(event)
        self.payload = encode(event)
        self.digest = hashlib.sha256(self.payload).hexdigest() if writer else ""
        signature = {WRITER: writer, DIGEST: self.digest} if writer else {}
        self._headers = {**headers_of(event, source=source), **signature}
        self._size = len(self.payload) + _header_bytes(self._headers)
        if self._size > (most := largest_message_bytes(self.spec)):
            raise PublishFailed(
                f"{self.what}: {self._size} bytes are more than a message's {most}: make the event smaller"
            )
        self.timeout_s = ACK_TIMEOUT_S + self._size / SLOW_BYTES_PER_S
        """How long one attempt may take."""

    async def send(self, *, expected_last: int | None = None, timeout_s: float | None = None) -> Published | Fault:
        """One attempt, within ``timeout_s`` (None: what its size wants). A Fault says that trying again may help.

        Raises Denied or PublishFailed where it cannot, WrongSequence where the stream ends elsewhere than at
        ``expected_last``, Unanswered where it is not known whether the event was stored.
        """
        # Each time: a server that takes another one's place may have another limit.
        if self._size > (most := self._wire.max_payload_bytes):
            raise PublishFailed(
                f"{self.what}: it has {self._size} bytes, and the server takes {most} in one message: raise "
                "max_payload in its configuration to 8 MiB"
            )
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        headers = self._headers if expected_last is None else {**self._headers, EXPECTED_LAST: str(expected_last)}
        try:
            message = await self._wire.request(self._subject, self.payload, headers, timeout_s=timeout_s)
        except Unanswered as error:
            if error.no_responders:
                await self._require_stream()
            elif await self._wire.answers(ALIVE_S):
                raise Unanswered(f"{error}: {STORES_NOTHING}") from None
            raise
        ack = msgspec.json.decode(message.data, type=Ack)
        if ack.error is None:
            return Published(ack.seq, ack.duplicate)
        if ack.error.err_code in WRONG_SEQUENCE:
            last = re.search(r"\d+", ack.error.description)
            raise WrongSequence(f"{self.what}: {ack.error.description}", int(last[0]) if last else None)
        if ack.error.code == 400 and ack.error.err_code != STREAM_FULL:
            raise PublishFailed(f"{self.what}: the server refuses it: {ack.error}")
        return ack.error

    async def _require_stream(self) -> None:
        """That nobody answers may mean that the server is starting, or that nothing takes this subject."""
        try:
            await self._wire.api(f"STREAM.INFO.{self.stream}")
        except ApiError as error:
            if error.fault.err_code == UNKNOWN_STREAM:
                raise PublishFailed(
                    f"{self.what}: stream {self.stream} does not exist: run headrace topology apply"
                ) from None
        except Unanswered:
            pass


def why(fault: Fault, spec: StreamSpec) -> str:
    """A fault in words for a log line that people act on."""
    return f"the stream is full ({fault}): {_ROOM[spec.kind]}" if fault.err_code == STREAM_FULL else str(fault)


def _header_bytes(headers: dict[str, str]) -> int:
    """As the server counts them: a line for each, and 64 for what frames them and the sequence that may be added."""
    return 64 + len("".join([*headers, *headers.values()]).encode()) + 4 * len(headers)


class Ack(msgspec.Struct):
    """A stream's answer to a message."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: Fault | None = None
