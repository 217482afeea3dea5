"""A connection's bytes, with less copying than asyncio's streams, which nats-py uses.

A stream puts what comes into one buffer and copies out of it what is read. Here a reader gets the pieces as they came.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any
from urllib.parse import ParseResult

import nats.aio.transport
import nats.errors

MOST_AHEAD_BYTES = 2 * 1024 * 1024
"""No more is taken from the socket while so much waits to be read."""
MOST_LINE_BYTES = 1024 * 1024
CLOSE_S = 1.0
"""Most time for what is still to be sent when a connection is closed."""


class Pieces(asyncio.Protocol):
    """What came and was not read yet, in the pieces in which it came."""

    transport: asyncio.Transport

    def __init__(self, *, over_tls: bool) -> None:
        self._over_tls = over_tls
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.lost = asyncio.Event()

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        if self._size > MOST_AHEAD_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        self._ended = True
        self._news.set()
        return not self._over_tls  # There the connection is closed either way, and asyncio would complain.

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._error = True, exc
        self._news.set()
        self._may_write.set()
        self.lost.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # What the transport calls

    @property
    def at_end(self) -> bool:
        return self._ended and not self._waiting

    async def read(self) -> bytes:
        """The next piece, empty at the end. Raises OSError where the connection was lost."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._news.clear()
            await self._news.wait()
        piece = self._waiting.popleft()
        self._size -= len(piece)
        if self._paused and self._size <= MOST_AHEAD_BYTES // 2:
            self._paused = False
            self.transport.resume_reading()
        return piece

    def put_back(self, piece: bytes) -> None:
        self._waiting.appendleft(piece)
        self._size += len(piece)

    async def written(self) -> None:
        """Return when more may be written. Raises OSError where nothing more can be."""
        await self._may_write.wait()
        if self.lost.is_set():
            raise self._error or ConnectionResetError("connection lost")


class PiecewiseTransport(nats.aio.transport.Transport):
    """TCP, with TLS or without."""

    def __init__(self) -> None:
        self._pieces: Pieces | None = None

    @property
    def connection(self) -> asyncio.Transport:
        """As asyncio knows it."""
        return self._open.transport

    @property
    def _open(self) -> Pieces:
        assert self._pieces is not None, "connect comes first"
        return self._pieces

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        loop, (host, port) = asyncio.get_running_loop(), (uri.hostname or "", uri.port or 0)
        async with asyncio.timeout(connect_timeout):
            _, self._pieces = await loop.create_connection(lambda: Pieces(over_tls=False), host, port)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        name, pieces = uri if isinstance(uri, str) else uri.hostname, Pieces(over_tls=True)
        async with asyncio.timeout(connect_timeout):
            transport = await asyncio.get_running_loop().start_tls(
                self.connection, pieces, ssl_context, server_hostname=name
            )
        assert transport is not None
        pieces.connection_made(transport)
        self._pieces = pieces

    def write(self, payload: bytes) -> None:
        self.connection.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.connection.writelines(payload)

    async def read(self, buffer_size: int) -> bytes:
        return await self._open.read()

    async def readline(self) -> bytes:
        line = b""
        while b"\n" not in line:
            if len(line) > MOST_LINE_BYTES:
                raise nats.errors.ProtocolError
            if not (piece := await self._open.read()):
                return line
            line += piece
        line, end, rest = line.partition(b"\n")
        if rest:
            self._open.put_back(rest)
        return line + end

    async def drain(self) -> None:
        if self.connection.is_closing():
            await asyncio.sleep(0)  # So that a connection that is lost says so.
        await self._open.written()

    async def wait_closed(self) -> None:
        if self._pieces is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._pieces.lost.wait()
        except TimeoutError:
            # The other end takes nothing: the kernel would go on trying for a quarter of an hour, and nats-py looks for
            # another server only after this.
            self._pieces.transport.abort()
            await self._pieces.lost.wait()

    def close(self) -> None:
        if self._pieces is not None:
            self._pieces.transport.close()

    def at_eof(self) -> bool:
        return self._pieces is None or self._pieces.at_end

    def __bool__(self) -> bool:
        return self._pieces is not None
