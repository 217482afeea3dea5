"""What tests of the bus need besides: a server of their own to hurt, and a relay that loses answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bus import Address, Bus, BusRole, EmbeddedServer, connect
from bus.settings import LogSettings

DEADLINE_S = 30.0


async def until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds; it must within 30 s."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.01)


class Fragile:
    """A server that can be killed and started again on its store, with one run on it."""

    run = "fragile"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = EmbeddedServer.start(folder)

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()

    def start(self) -> None:
        self.server = EmbeddedServer.start(self.folder)

    async def connect(self, role: BusRole, *, through: Relay | None = None) -> Bus:
        address = self.server.address(role)
        if through is not None:
            address = Address(through.url, address.user, address.password)
        return await connect(address, run=self.run, role=role, id=f"{role}-0")

    async def make_streams(self) -> None:
        bus = await self.connect("topology")
        await bus.apply_topology(LogSettings())
        await bus.close()


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Fragile]:
    fragile = Fragile(tmp_path / "server")
    yield fragile
    fragile.server.stop()


class Relay:
    """Passes bytes between a client and the server; ``deaf`` drops what the server says."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.deaf = False
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._connections |= {writer, upstream_writer}
        for source, sink, answers in ((reader, upstream_writer, False), (upstream_reader, writer, True)):
            task = asyncio.create_task(self._pass_on(source, sink, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not (answers and self.deaf):
                    sink.write(data)
                    await sink.drain()
        sink.close()

    def cut(self) -> None:
        """End all connections; new ones are taken."""
        for writer in self._connections:
            writer.transport.abort()
        self._connections.clear()

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


@pytest.fixture
async def relay(server: EmbeddedServer) -> AsyncIterator[Relay]:
    """A relay to the session's server."""
    relay = Relay(int(server.url.rpartition(":")[2]))
    await relay.start()
    yield relay
    await relay.stop()
