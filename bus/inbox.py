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
from collections.abc import AsyncIterator, Callable

from schemas import BusError, LogGap

from .answers import Unanswered
from .consumer import Consumer, Delivery
from .stream import Logged

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
    ) -> None:
        """``start``: the first sequence to deliver. ``read``: the stream from a sequence to its end."""
        self.consumer = consumer
        self._loop = loop
        self._next = start
        self._read = read
        self._changed = threading.Condition()
        self._buffer: deque[Delivery] = deque()
        self._bytes = 0
        self._fault: Exception | None = None
        self._room = asyncio.Event()
        self._pump_waits = False
        self._replies: dict[int, str] = {}
        self._settling: set[asyncio.Task[None]] = set()

    @property
    def buffered(self) -> tuple[int, int]:
        """Messages and bytes that are fetched and not yet taken."""
        with self._changed:
            return len(self._buffer), self._bytes

    def get(self, timeout_s: float) -> Delivery | None:
        """The next delivery, or None where none came within ``timeout_s``.

        Raises BusError where none will come: LogGap where the stream has lost messages.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._buffer or self._fault, timeout_s):
                return None
            if not self._buffer:
                if isinstance(self._fault, LogGap):
                    raise self._fault
                raise BusError(f"nothing more comes from {self.consumer.name}: {self._fault}") from self._fault
            delivery = self._buffer.popleft()
            self._bytes -= len(delivery.payload)
            if self._pump_waits and self._has_room():
                self._pump_waits = False
                self._loop.call_soon_threadsafe(self._room.set)
        return delivery

    def ack_through(self, sequence: int) -> None:
        """Have everything up to ``sequence`` settled, without waiting for it.

        Where the server does not confirm it, that is logged, and a later call settles this part too: what decides
        is the ledger.
        """
        with self._changed:
            settled = sorted(each for each in self._replies if each <= sequence)
            replies = [self._replies.pop(each) for each in settled]
        if replies:
            self._loop.call_soon_threadsafe(self._settle, settled[-1], replies[-1])

    def _settle(self, sequence: int, reply: str) -> None:
        task = asyncio.create_task(self._settled(sequence, reply))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settled(self, sequence: int, reply: str) -> None:
        try:
            await self.consumer.settle(reply)
        except BusError as error:
            log.warning("%s: settling up to %d was not confirmed: %s", self.consumer.name, sequence, error)

    async def finish(self, timeout_s: float) -> None:
        """Wait for what is being settled."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=timeout_s)

    async def pump(self) -> None:
        """Fetch whenever there is room, until cancelled."""
        try:
            while True:
                await self._await_room()
                batch = min(FETCH_MESSAGES, MOST_MESSAGES - len(self._buffer))
                fetched = await self.consumer.fetch(batch, FETCH_S, max_bytes=FETCH_BYTES)
                await self._take(sorted(fetched, key=lambda delivery: delivery.sequence))
                if not fetched:
                    await self._look_for_strays()
        except Exception as error:
            with self._changed:
                self._fault = error
                self._changed.notify_all()

    async def _take(self, fetched: list[Delivery]) -> None:
        with self._changed:
            # A redelivery's reply replaces the earlier one: a server that was killed may have forgotten that.
            self._replies.update((delivery.sequence, delivery.reply) for delivery in fetched)
        ready: list[Delivery] = []
        for delivery in fetched:
            if delivery.sequence > self._next + len(ready):
                self._put(ready)
                ready = []
                await self._read_up_to(delivery.sequence)
            if delivery.sequence == self._next + len(ready):
                ready.append(delivery)
        self._put(ready)

    async def _look_for_strays(self) -> None:
        """Read what the consumer has handed out, but not to us."""
        try:
            state = await self.consumer.info()
        except Unanswered:
            return
        if state.pending == 0 and state.delivered >= self._next:
            await self._read_up_to(state.delivered + 1)

    async def _read_up_to(self, sequence: int) -> None:
        """Take from the stream what lies before ``sequence`` and was not delivered."""
        log.info("messages %d to %d of %s went elsewhere: reading them", self._next, sequence - 1, self.consumer.name)
        async for logged in self._read(self._next):
            if logged.sequence >= sequence:
                break
            await self._await_room()
            self._put([self.consumer.undelivered(logged)])
        self._next = max(self._next, sequence)  # What was not there was purged.

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

    def _put(self, deliveries: list[Delivery]) -> None:
        """Those that come next, all at once: each time the other thread is woken costs both of them."""
        if deliveries:
            self._next = deliveries[-1].sequence + 1
            with self._changed:
                self._buffer += deliveries
                self._bytes += sum(len(each.payload) for each in deliveries)
                self._changed.notify()
