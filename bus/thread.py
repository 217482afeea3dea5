"""The trainer's NATS thread: an event loop that goes on answering the server while the main thread computes.

Measured: a loop blocked for 14 s by a step made the server drop the connection as a slow consumer. Computation
that releases Python's lock (torch and numpy do) leaves this thread free.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from schemas import BusError, StreamSpec

from .address import Address
from .answers import Unanswered
from .connection import Bus, connect
from .consumer import Consumer
from .inbox import Inbox
from .permissions import BusRole

log = logging.getLogger("headrace.bus")
T = TypeVar("T")
CONNECT_GRACE_S = 25.0
"""Connecting takes so much longer than it was given where the server stops answering in the middle of it."""
STOP_S, FINISH_S = 5.0, 1.0


class BusThread:
    """A Bus in a thread of its own, with a face for ordinary code. Start it once, stop it once."""

    def __init__(self, address: Address, *, run: str, role: BusRole, id: str) -> None:
        self._address = address
        self._run, self._role, self._id = run, role, id
        self._thread = threading.Thread(target=self._live, name=f"nats-{role}", daemon=True)
        self._connected: concurrent.futures.Future[Bus] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._inboxes: dict[Inbox, asyncio.Task[None]] = {}

    def start(self, *, timeout_s: float = 10.0) -> None:
        """Connect. Raises what ``connect`` raises."""
        self._timeout_s = timeout_s
        self._thread.start()
        self._connected.result(timeout_s + CONNECT_GRACE_S)

    @property
    def bus(self) -> Bus:
        """For use inside ``call``; its coroutines belong to this thread's loop."""
        return self._connected.result(0)

    def call(self, act: Callable[[Bus], Awaitable[T]], timeout_s: float | None) -> T:
        """Run ``act`` in the NATS thread and return what it returns, or raise what it raises.

        Raises Unanswered where it is not done within ``timeout_s``; it is cancelled then, and what it had sent may
        still have been stored. None waits for as long as ``act`` does.
        """
        if self._loop is None or not self._thread.is_alive():
            raise BusError("the NATS thread does not run: it was not started, or it was stopped")
        future = asyncio.run_coroutine_threadsafe(_awaited(act, self.bus), self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()  # The act's own, or what it has returned at the last moment.
            future.cancel()
            raise Unanswered(f"the NATS thread has not done it within {timeout_s:g} s: look at the server") from None
        except concurrent.futures.CancelledError:
            raise BusError("the NATS thread was stopped meanwhile") from None

    def inbox(
        self,
        spec: StreamSpec,
        durable: str,
        *,
        ack: Literal["explicit", "all"],
        ack_wait_s: float,
        start: int,
    ) -> Inbox:
        """The stream's messages from sequence ``start`` on, fetched ahead through the durable consumer."""

        async def make(bus: Bus) -> Inbox:
            consumer: Consumer = await bus.consumer(spec, durable, ack=ack, ack_wait_s=ack_wait_s)
            await consumer.reset(start)
            loop = asyncio.get_running_loop()
            inbox = Inbox(consumer, loop, start=start, read=lambda sequence: bus.read(spec, start=sequence))
            self._inboxes[inbox] = asyncio.create_task(inbox.pump())
            return inbox

        return self.call(make, 30.0)

    def stop(self) -> None:
        """Send what is still to be sent, disconnect, and end the thread, within 5 s."""
        if self._loop is None or self._stopping is None or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            log.warning("the NATS thread did not end in %.0f s", STOP_S)

    def _live(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._stopping = asyncio.Event()
        try:
            bus = await connect(self._address, run=self._run, role=self._role, id=self._id, timeout_s=self._timeout_s)
        except BaseException as error:
            self._connected.set_exception(error)
            return
        self._loop = asyncio.get_running_loop()
        self._connected.set_result(bus)
        try:
            await self._stopping.wait()
        finally:
            await self._finish_inboxes()
            await bus.close()

    async def _finish_inboxes(self) -> None:
        """Have the inboxes settle what is being settled, all at the same time: a server may be away."""
        for pump in self._inboxes.values():
            pump.cancel()
        settling = [asyncio.create_task(inbox.finish(FINISH_S)) for inbox in self._inboxes]
        if settling:
            await asyncio.wait([*settling, *self._inboxes.values()], timeout=FINISH_S)


async def _awaited(act: Callable[[Bus], Awaitable[T]], bus: Bus) -> T:
    return await act(bus)
