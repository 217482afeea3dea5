"""nats-py's client, mended where what others publish would end it, and quicker where rollouts are many or long.

nats-py gives each message to a queue and a task of its subscription. Here whoever listens is called as it is read.
What it costs is shown by ``make bench-transport``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import nats.aio.client
import nats.errors
from nats.aio.subscription import Subscription

from .headers import Headers, header_block
from .parser import Parser
from .received import Received
from .transport import PiecewiseTransport

Take = Callable[[Received], None]
"""Called with each message, while the connection is read: it only takes note of it."""


class Client(nats.aio.client.Client):
    """Reads on after a subject that is no UTF-8.

    A server lets such subjects through, and nats-py's reading of the connection ends, without a word, at the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ps = Parser(self)
        self._takers: dict[int, Take] = {}
        """By the number of a subscription."""
        self._answers: dict[str, Take] = {}
        """By the last part of the subject to which the answers go."""
        self._answer_prefix = ""
        self._asked = 0

    async def _connect_to_server(self, s: Any) -> None:
        s.last_attempt = time.monotonic()
        if self._transport is None:
            self._transport = PiecewiseTransport()
        await self._transport.connect(s.uri, 0, self.options["connect_timeout"])

    # Listening

    async def listen(self, subject: str, take: Take) -> Subscription:
        """Have ``take`` called with each message; until ``forget``, also when the connection was lost meanwhile."""
        subscription = await self.subscribe(subject)
        self._takers[subscription._id] = take
        return subscription

    async def forget(self, subscription: Subscription) -> None:
        self._takers.pop(subscription._id, None)
        await subscription.unsubscribe()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        take = self._takers.get(sid)
        if take is None:
            legible = subject.decode("utf-8", "replace").encode()
            await super()._process_msg(sid, legible, reply, data, headers)  # type: ignore[arg-type]
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            take(Received(subject.decode("utf-8", "replace"), reply.decode(), data, Headers(headers or b"")))
        except Exception as error:  # The connection is read on, whatever came over it.
            await self._error_cb(error)

    # Asking

    async def ask(self, subject: str, payload: bytes, headers: Mapping[str, str] | None, take: Take) -> str:
        """Send a request, whose answers ``take`` gets until ``unask`` is called with the name returned.

        As nats-py's ``request``, without the two tasks and the two names of its own that this takes for each.
        """
        if not self._answer_prefix:
            self._answer_prefix = f"{self.new_inbox()}."
            await self.listen(f"{self._answer_prefix}*", self._answered)
        self._asked += 1
        name = str(self._asked)
        self._answers[name] = take
        try:
            await self.publish(subject, payload, reply=self._answer_prefix + name, headers=headers)  # type: ignore[arg-type]
        except BaseException:
            self.unask(name)
            raise
        return name

    def unask(self, name: str) -> None:
        """What still comes for that request is passed over."""
        self._answers.pop(name, None)

    def _answered(self, message: Received) -> None:
        if take := self._answers.get(message.subject[len(self._answer_prefix) :]):
            take(message)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: Mapping[str, str] | None
    ) -> None:
        """As nats-py's, without joining the payload to what stands before it: a copy for each message."""
        block = header_block(headers) if headers else b""
        verb, sizes = ("HPUB", f"{len(block)} {len(block) + payload_size}") if headers else ("PUB", f"{payload_size}")
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        pieces = (f"{verb} {subject} {reply} {sizes}\r\n".encode(), block, payload, b"\r\n")
        self._pending += pieces
        self._pending_data_size += sum(map(len, pieces))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        """As nats-py's, which waits here until what is to be sent is sent, and takes no cancellation meanwhile."""
        self._pending.insert(0 if priority else len(self._pending), cmd)
        self._pending_data_size += len(cmd)

    def drop_unsent(self) -> None:
        """Forget what waits to be sent: nats-py would send it over its next connection."""
        self._pending, self._pending_data_size = [], 0

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that more should wait too."""
        return 0 < self._max_pending_size < self._pending_data_size

    async def uncongested(self) -> None:
        """Return when what waits now was given to the connection, or that is lost."""
        if self.congested and self._flush_queue is not None and self.is_connected:
            sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self._flush_queue.put(sent)
            await sent
