"""Deliveries of one consumer for a thread: fetched ahead by the NATS thread, into a buffer with a bound.

They come in the stream's order, each once and none left out, whatever happens to the consumer's deliveries: a
process that was thought dead, or is stopped in the middle of a pull, takes some of them. What is missing is read
from the stream itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from schemas import BusError

from .consumer import Consumer, Delivery
from .log import Logged

log = logging.getLogger("headrace.bus")
MOST_MESSAGES = 1024
MOST_BYTES = 32 * 1024 * 1024
FETCH_MESSAGES = 256
FETCH_BYTES = 16 * 1024 * 1024
"""Room for a fetch of so much is waited for, so the buffer never holds more than MOST_BYTES."""
FETCH_S = 2.0
"""Short: a pull may be lost with a connection, and only its end shows that."""


class Inbox:
    """Filled by ``pump`` in the NATS thread; ``get`` and ``ack_through`` are for one other thread."""

    def __init__(
        self,
        consumer: Consumer,
        loop: asyncio.AbstractEventLoop,
        *,
        start: int,
        read: Callable[[int], AsyncIterator[Logged]],
        last_sequence: Callable[[], Awaitable[int]],
    ) -> None:
        """``start``: the first sequence to deliver. ``read``: the stream from a sequence to its end."""
        self.consumer = consumer
        self._loop = loop
        self._next = start
        self._read = read
        self._last_sequence = last_sequence
        self._changed = threading.Condition()
        self._buffer: deque[Delivery] = deque()
        self._bytes = 0
        self._fault: Exception | None = None
        self._room = asyncio.Event()
        self._pump_waits = False
        self._unsettled: deque[tuple[int, str]] = deque()

    @property
    def buffered(self) -> tuple[int, int]:
        """Messages and bytes that are fetched and not yet taken."""
        with self._changed:
            return len(self._buffer), self._bytes

    def get(self, timeout_s: float) -> Delivery | None:
        """The next delivery, or None where none came within ``timeout_s``. Raises BusError where none will come."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._buffer or self._fault, timeout_s):
                return None
            if not self._buffer:
                raise BusError(f"nothing more comes from {self.consumer.name}: {self._fault}") from self._fault
            delivery = self._buffer.popleft()
            self._bytes -= len(delivery.payload)
            if delivery.reply:
                self._unsettled.append((delivery.sequence, delivery.reply))
            if self._pump_waits and self._has_room():
                self._pump_waits = False
                self._loop.call_soon_threadsafe(self._room.set)
        return delivery

    def ack_through(self, sequence: int, *, timeout_s: float = 10.0) -> bool:
        """Settle what was taken up to ``sequence``. False where the server did not confirm it.

        Nothing is lost then: the ledger is the cursor, and a later call settles this part too.
        """
        reply = ""
        while self._unsettled and self._unsettled[0][0] <= sequence:
            _, reply = self._unsettled.popleft()
        if not reply:
            return True
        settling = asyncio.run_coroutine_threadsafe(self.consumer.settle(reply), self._loop)
        try:
            settling.result(timeout_s)
        except (BusError, TimeoutError):
            settling.cancel()
            return False
        return True

    async def pump(self) -> None:
        """Fetch whenever there is room, until cancelled."""
        try:
            while True:
                await self._await_room()
                batch = min(FETCH_MESSAGES, MOST_MESSAGES - len(self._buffer))
                fetched = await self.consumer.fetch(batch, FETCH_S, max_bytes=FETCH_BYTES)
                for delivery in sorted(fetched, key=lambda delivery: delivery.sequence):
                    await self._repair(before=delivery.sequence)
                    if delivery.sequence == self._next:
                        self._put(delivery)
                if not fetched:
                    await self._repair(before=await self._last_sequence() + 1)
        except Exception as error:
            with self._changed:
                self._fault = error
                self._changed.notify_all()

    async def _repair(self, *, before: int) -> None:
        """Read what lies in the stream before sequence ``before`` and was not delivered."""
        if before <= self._next:
            return
        log.info("messages %d to %d of %s went elsewhere: reading them", self._next, before - 1, self.consumer.name)
        async for logged in self._read(self._next):
            if logged.sequence >= before:
                return
            await self._await_room()
            self._put(self.consumer.undelivered(logged))
        self._next = max(self._next, before)  # what is not there was purged

    async def _await_room(self) -> None:
        while True:
            with self._changed:
                if self._has_room():
                    return
                self._pump_waits = True
                self._room.clear()
            await self._room.wait()

    def _has_room(self) -> bool:
        return len(self._buffer) < MOST_MESSAGES and self._bytes + FETCH_BYTES <= MOST_BYTES

    def _put(self, delivery: Delivery) -> None:
        self._next = delivery.sequence + 1
        with self._changed:
            self._buffer.append(delivery)
            self._bytes += len(delivery.payload)
            self._changed.notify()
