"""nats-py's client, mended where what others publish would end it, and quicker where rollouts are many or long.

What it costs is shown by ``make bench-transport``.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import nats.aio.client
import nats.errors
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport

from .parser import Parser

READ_BYTES = 1024 * 1024
"""Most that is read at once, and that the socket is read ahead by half. With nats-py's 32 KiB the event loop stops and
starts to listen for every 256 KiB."""
_BLANK = " \t\n\r\x0b\x0c"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ONE_LINE = {ord("\r"): " ", ord("\n"): " "}


class Client(nats.aio.client.Client):
    """Reads on after a subject that is no UTF-8.

    A server lets such subjects through, and nats-py's reading of the connection ends, without a word, at the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ps = Parser(self)
        self._asked = 0

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        legible = subject.decode("utf-8", "replace").encode()
        return super()._build_message(sid, legible, reply, data, headers)

    async def _connect_to_server(self, s: Any) -> None:
        s.last_attempt = time.monotonic()
        if self._transport is None:
            self._transport = RoomyTransport()  # type: ignore[no-untyped-call]
        await self._transport.connect(s.uri, READ_BYTES, self.options["connect_timeout"])

    async def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, answer: asyncio.Future[Msg]
    ) -> None:
        """Send a request, whose answer ``answer`` gets; it is let go when that is done, however it ends.

        As nats-py's ``request``, without the two tasks and the two names of its own that this takes for each.
        """
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix
        self._asked += 1
        name = str(self._asked)
        self._resp_map[name] = answer
        answer.add_done_callback(lambda _: self._resp_map.pop(name, None))
        await self.publish(subject, payload, reply=f"{self._resp_sub_prefix.decode()}{name}", headers=headers)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: Mapping[str, str] | None
    ) -> None:
        """As nats-py's, without joining the payload to what stands before it: a copy for each message."""
        block = _header_block(headers) if headers else b""
        verb, sizes = ("HPUB", f"{len(block)} {len(block) + payload_size}") if headers else ("PUB", f"{payload_size}")
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        pieces = (f"{verb} {subject} {reply} {sizes}\r\n".encode(), block, payload, b"\r\n")
        self._pending += pieces
        self._pending_data_size += sum(map(len, pieces))
        full = 0 < self._max_pending_size < self._pending_data_size
        if full or (self._flush_queue is not None and self._flush_queue.empty()):
            await self._flush_pending(force_flush=full)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As nats-py's, which looks at each character of each name."""
        headers = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            name = name.strip(_BLANK)
            if colon and name.isascii() and len(name.split(None, 1)) < 2:
                headers[name] = value.strip(_BLANK)
        return headers


class RoomyTransport(TcpTransport):
    """A connection that is read in pieces of READ_BYTES."""

    async def read(self, buffer_size: int) -> bytes:
        read: bytes = await super().read(max(buffer_size, READ_BYTES))
        return read


def _header_block(headers: Mapping[str, str]) -> bytes:
    """The headers as they travel; a line break in a value becomes a space. Raises BadHeaderError for a bad name."""
    lines = [f"{_legible(name)}: {_one_line(value.strip())}" for name, value in headers.items()]
    return "\r\n".join(("NATS/1.0", *lines, "\r\n")).encode()


def _one_line(value: str) -> str:
    return value if value.isprintable() else value.translate(_ONE_LINE)


@lru_cache(maxsize=256)
def _legible(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise nats.errors.BadHeaderError(name)
    return name
