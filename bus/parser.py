"""Reading what the server sends: nats-py's parser, with a quicker way for messages.

nats-py's puts all that comes into one buffer, looks there for each kind of command, and copies every payload out of it
twice. Here a payload is copied once, or twice where it came in several pieces.
"""

from __future__ import annotations

import re
from typing import Any

import nats.protocol.parser
from nats.protocol.parser import AWAITING_MSG_PAYLOAD

_MESSAGE = re.compile(rb"MSG (\S+) (\S+) (?:(\S+) )?()(\d+)\r\n")
_WITH_HEADERS = re.compile(rb"HMSG (\S+) (\S+) (?:(\S+) )?(\d+) (\d+)\r\n")
_END = 2
"""Bytes of the line break after a payload."""


class Parser(nats.protocol.parser.Parser):
    """As nats-py's, to which it leaves every command but messages, and what is cut in a line or in headers."""

    def reset(self) -> None:
        super().reset()
        self._begun: tuple[int, bytes, bytes, bytes | None] | None = None
        """Subscription, subject, reply and headers of a message of which not all has come."""
        self._parts: list[bytes] = []
        self._missing = 0
        """Bytes of it that are still to come, with its end."""

    async def parse(self, data: bytes = b"") -> None:
        start = 0
        if self._begun is not None:
            start = self._go_on(data)
            if self._missing:
                return
            await self._finish()
        elif self.state == AWAITING_MSG_PAYLOAD:
            await super().parse(data)
            return
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        while start < len(data):
            line = _MESSAGE.match(data, start) or _WITH_HEADERS.match(data, start)
            if line is None or len(data) < line.end() + int(line[4] or 0):
                await super().parse(data[start:])
                return
            start = self._begin(line, data)
            if self._missing:
                return
            await self._finish()

    def _begin(self, line: re.Match[bytes], data: bytes) -> int:
        """Take what ``data`` has of the message after ``line``; returns where it ends there."""
        subject, sid, reply, header_size, size = line.groups(default=b"")
        body = line.end() + int(header_size or 0)
        self._begun = int(sid), subject, reply, data[line.end() : body] or None
        self._missing = line.end() + int(size) - body + _END
        return self._go_on(data, body)

    def _go_on(self, data: bytes, start: int = 0) -> int:
        """Take what ``data`` has from ``start`` on of the message that was begun; returns where it ends there."""
        stop = min(len(data), start + self._missing)
        payload_stop = min(stop, start + max(0, self._missing - _END))
        if payload_stop > start:
            self._parts.append(data[start:payload_stop])
        self._missing -= stop - start
        return stop

    async def _finish(self) -> None:
        assert self._begun is not None
        sid, subject, reply, headers = self._begun
        payload = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._begun, self._parts = None, []
        client: Any = self.nc
        await client._process_msg(sid, subject, reply, payload, headers)
