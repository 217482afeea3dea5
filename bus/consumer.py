"""A durable pull consumer: a cursor that the server keeps, and the leases of what it handed out.

A pull never outlives its call: what the server would send later, it would send to nobody, and that lease would
have to end before another could play the task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Literal

import msgspec

from schemas import BusError, StreamMismatch

from .answers import ApiError, Collected, Fault, Unanswered
from .patience import Patience
from .received import Received, origin_of
from .stream import Logged, event_in
from .topology import differences
from .wire import Wire

log = logging.getLogger("headrace.bus")

MAX_PULL_BYTES = 32 * 1024 * 1024
"""Most bytes of one fetch; the server drops a client that is more than 64 MB behind."""
ACK_TIMEOUT_S, ACK_DEADLINE_S = 5.0, 10.0
NAK_TIMEOUT_S = 1.0
"""Short: leases are given back by a role that is about to end, and end by themselves where it cannot."""
PULL_QUIET_S = 5.0
UNKNOWN_CONSUMER, UNKNOWN_STREAM = 10014, 10059
_ENDS = ("", "404", "408")
"""Ways in which a pull ends as it should: filled, nothing there, time over."""
_FULL = "Message Size Exceeds MaxBytes"


class Delivery(Logged, frozen=True, kw_only=True):
    """A message that is leased to us until its ack wait ends."""

    delivered: int
    """How many times it has been handed out, this time included."""
    reply: str
    """Where it is answered; empty for a message that was read from the stream itself."""
    wire: Wire

    async def ack(self) -> None:
        """Settle it (on an ``all`` consumer: and everything before it). Returns when the server has confirmed.

        Raises BusError where it has not within 10 s: the message is then delivered again when the lease ends.
        """
        await settle(self.wire, self.reply)

    async def nak(self, delay_s: float = 0.0) -> None:
        """Give it back, to be delivered again after ``delay_s``. Raises as ``ack`` does, after 1 s."""
        delay = msgspec.json.encode({"delay": int(delay_s * 1e9)}) if delay_s else b""
        await self._answer(b"-NAK " + delay if delay else b"-NAK", NAK_TIMEOUT_S)

    async def in_progress(self) -> None:
        """Renew the lease. Raises as ``ack`` does, after 5 s."""
        await self._answer(b"+WPI", ACK_TIMEOUT_S)

    async def _answer(self, word: bytes, timeout_s: float) -> None:
        await self.wire.request(self.reply, word, timeout_s=timeout_s)


async def settle(wire: Wire, reply: str) -> None:
    """Acknowledge until the server confirms: twice is as good as once. Raises BusError after 10 s."""
    patience = Patience("acknowledging a delivery", deadline_s=ACK_DEADLINE_S)
    while True:
        try:
            await wire.request(reply, b"+ACK", timeout_s=patience.remaining_s(ACK_TIMEOUT_S))
            return
        except Unanswered as error:
            await patience.pause(str(error))


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a consumer stands. Sequences are the stream's."""

    delivered: int
    """Last sequence handed out."""
    ack_floor: int
    """Everything up to here is settled."""
    pending: int
    """Messages that were never handed out."""
    ack_pending: int
    """Messages handed out and not settled."""


class Consumer:
    """See ``Bus.consumer``."""

    def __init__(self, wire: Wire, stream: str, durable: str) -> None:
        self._wire = wire
        self._stream = stream
        self._durable = durable
        self.name = f"consumer {durable} of {stream}"
        self._pulls = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"

    async def create(self, *, ack: Literal["explicit", "all"], ack_wait_s: float) -> None:
        """Make it, or take the one that is there, waiting for the server for as long as it takes.

        Raises StreamMismatch where that one has other settings, BusError where the server refuses to make it.
        """
        config = {
            "name": self._durable,
            "durable_name": self._durable,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_policy": ack,
            "ack_wait": int(ack_wait_s * 1e9),
            # Unlimited: a message past a limit would stay in the stream with nothing to bring it back, and a
            # consumer that holds its limit would stall.
            "max_deliver": -1,
            "max_ack_pending": -1,
        }
        body = {"stream_name": self._stream, "config": config}
        patience = Patience(f"making {self.name}")
        while True:
            try:
                await self._wire.api(f"CONSUMER.CREATE.{self._stream}.{self._durable}", body)
                return
            except Unanswered as error:
                await patience.pause(str(error))
            except ApiError as error:
                if error.fault.err_code == UNKNOWN_STREAM:
                    raise _no_stream(self._stream) from None
                if error.fault.code != 503:
                    raise await self._refusal(error.fault, config) from None
                await patience.pause(str(error.fault))  # It is not ready: an election, say.

    async def _refusal(self, fault: Fault, wanted: dict[str, Any]) -> BusError:
        """Why the server does not make it as ``wanted``."""
        try:
            found = (await self._wire.api(f"CONSUMER.INFO.{self._stream}.{self._durable}"))["config"]
        except (ApiError, Unanswered):
            found = wanted
        if faults := differences(found, wanted):
            return StreamMismatch(
                f"{self.name} exists with other settings ({'; '.join(faults)}): stop who uses it, "
                f"and delete it: nats consumer rm {self._stream} {self._durable}"
            )
        return BusError(f"the server refuses to make {self.name}: {fault}: look at its limits and its log")

    async def fetch(self, max_messages: int, timeout_s: float, *, max_bytes: int = MAX_PULL_BYTES) -> list[Delivery]:
        """What is there, at once; else the next to come within ``timeout_s``. Empty where none came.

        ``max_bytes`` bounds the sum of the messages' sizes. Raises BusError where the consumer is gone.
        """
        deadline = time.monotonic() + timeout_s
        if not await self._wire.wait_connected(timeout_s):
            return []
        messages = await self._pull(max_messages, max_bytes)
        left_s = deadline - time.monotonic()
        if not messages and left_s > 0.001:
            messages = await self._pull(1, max_bytes, wait_s=left_s)
            room = max_bytes - sum(len(message.data) for message in messages)
            if messages and max_messages > 1 and room > 0:
                messages += await self._pull(max_messages - 1, room)
        return [self._delivery(message) for message in messages]

    async def _pull(self, batch: int, max_bytes: int, *, wait_s: float = 0.0) -> list[Received]:
        body: dict[str, Any] = {"batch": batch, "max_bytes": max_bytes}
        if wait_s:
            body["expires"] = int(wait_s * 1e9)
        else:
            body["no_wait"] = True
        answer = await self._wire.collect(self._pulls, body, most=batch, quiet_s=wait_s + PULL_QUIET_S)
        if not answer.messages and (answer.lost or answer.status not in _ENDS):
            await self._look_after(answer, max(wait_s, 0.05))
        return answer.messages

    async def _look_after(self, answer: Collected, most_s: float) -> None:
        """An odd end of a pull: raise if the consumer is gone; otherwise wait a little, it is the server's trouble."""
        if answer.description.startswith(_FULL):
            raise BusError(f"{self.name}: the next message is larger than what may be fetched: allow more bytes")
        trouble = answer.lost or f"{answer.status} {answer.description}".strip()
        log.info("%s: a pull ended early: %s", self.name, trouble)
        try:
            await self.info()
        except ApiError as error:
            if error.fault.err_code in (UNKNOWN_CONSUMER, UNKNOWN_STREAM):
                raise BusError(f"{self.name} was deleted: start again to make it anew") from None
        except Unanswered:
            pass
        await asyncio.sleep(min(most_s, 0.2))

    def _delivery(self, message: Received) -> Delivery:
        event, invalid = event_in(message.data, message.subject)
        origin = origin_of(message.reply)
        return Delivery(
            sequence=origin.sequence,
            time=origin.time,
            subject=message.subject,
            headers=message.headers,
            payload=message.data,
            event=event,
            invalid=invalid,
            delivered=origin.delivered,
            reply=message.reply,
            wire=self._wire,
        )

    def undelivered(self, logged: Logged) -> Delivery:
        """A message that was read from the stream, as if it had been delivered; there is no lease on it to end."""
        fields = {name: getattr(logged, name) for name in Logged.__struct_fields__}
        return Delivery(**fields, delivered=0, reply="", wire=self._wire)

    async def settle(self, reply: str) -> None:
        """Acknowledge a delivery by its ``reply`` alone, as ``Delivery.ack`` does."""
        await settle(self._wire, reply)

    async def info(self) -> ConsumerState:
        """Raises ApiError where the consumer is gone, Unanswered where nobody answers."""
        info = await self._wire.api(f"CONSUMER.INFO.{self._stream}.{self._durable}")
        return ConsumerState(
            delivered=info["delivered"]["stream_seq"],
            ack_floor=info["ack_floor"]["stream_seq"],
            pending=info["num_pending"],
            ack_pending=info["num_ack_pending"],
        )

    async def reset(self, sequence: int) -> None:
        """Deliver from ``sequence`` on next, forwards or backwards; what was handed out before is forgotten."""
        await self._wire.api(f"CONSUMER.RESET.{self._stream}.{self._durable}", {"seq": max(1, sequence)})


def _no_stream(stream: str) -> StreamMismatch:
    return StreamMismatch(f"stream {stream} does not exist: run headrace topology apply")
