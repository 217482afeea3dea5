"""A connection's bytes come whole and in order, are not taken faster than they are read, and its end is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlparse

import nats.errors
import pytest

from bus.transport import MOST_AHEAD_BYTES, MOST_LINE_BYTES, PiecewiseTransport

from .conftest import until


class Peer:
    """The other end: what it says, and what it heard."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[PiecewiseTransport, Peer]]:
    accepted: asyncio.Queue[Peer] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put(Peer(reader, writer))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        transport = PiecewiseTransport()
        assert not transport
        port = server.sockets[0].getsockname()[1]
        await transport.connect(urlparse(f"nats://127.0.0.1:{port}"), 0, 5)
        peer = await accepted.get()
        try:
            yield transport, peer
        finally:
            transport.close()
            await transport.wait_closed()
            peer.writer.close()


async def test_lines_and_what_follows_them_come_in_order() -> None:
    async with connection() as (transport, peer):
        peer.writer.write(b"INFO {}\r\nPONG\r\nMSG a 1 2\r\nhi\r\n")
        assert await transport.readline() == b"INFO {}\r\n"
        assert await transport.readline() == b"PONG\r\n"
        assert await transport.read(0) == b"MSG a 1 2\r\nhi\r\n"


async def test_a_line_that_does_not_end_is_not_read_for_ever() -> None:
    async with connection() as (transport, peer):
        peer.writer.write(b"I" * (MOST_LINE_BYTES + 1024 * 1024))
        with pytest.raises(nats.errors.ProtocolError):
            await transport.readline()


async def test_all_that_is_sent_comes_and_no_more_is_taken_than_is_read() -> None:
    sent = bytes(range(256)) * 256 * 1024
    async with connection() as (transport, peer):
        peer.writer.write(sent)
        waiting = transport._open
        await until(lambda: waiting._paused)
        assert waiting._size < MOST_AHEAD_BYTES + 1024 * 1024
        came = bytearray()
        while len(came) < len(sent):
            came += await transport.read(0)
        assert came == sent
        assert not waiting._paused


async def test_the_end_is_told_after_all_that_was_sent_before_it() -> None:
    async with connection() as (transport, peer):
        peer.writer.write(b"last words")
        peer.writer.close()
        assert await transport.read(0) == b"last words"
        assert await transport.read(0) == b""
        assert transport.at_eof()


async def test_a_connection_that_is_lost_is_an_error_for_readers_and_writers() -> None:
    async with connection() as (transport, peer):
        transport.writelines([b"x" * 64 * 1024 * 1024])
        drained = asyncio.create_task(transport.drain())
        await asyncio.sleep(0)
        peer.writer.transport.abort()
        with pytest.raises(OSError, match=r"[Cc]onnection|pipe"):
            await drained
        with pytest.raises(OSError, match=r"[Cc]onnection|pipe"):
            await transport.drain()
        assert transport.at_eof()


async def test_closing_does_not_wait_for_an_end_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.transport.CLOSE_S", 0.05)
    async with connection() as (transport, peer):
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        transport.writelines([b"x" * 64 * 1024 * 1024])
        transport.close()
        async with asyncio.timeout(30.0):
            await transport.wait_closed()
        assert transport.at_eof()


async def test_drain_waits_until_the_other_end_has_taken_most() -> None:
    async with connection() as (transport, peer):
        sent = 64 * 1024 * 1024
        transport.writelines([b"x" * (sent // 2)] * 2)
        drained = asyncio.create_task(transport.drain())
        came = 0
        while not drained.done():
            came += len(await peer.reader.read(1024 * 1024))
        assert came > sent // 2
        while came < sent:
            came += len(await peer.reader.read(1024 * 1024))
