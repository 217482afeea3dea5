"""What tests of the bus need besides: a server of their own to hurt, and a relay that loses answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from bus import Address, Bus, BusRole, EmbeddedServer, connect
from bus.settings import LogSettings, WeightsSettings

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
        self._buses: list[Bus] = []

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()

    def start(self) -> None:
        self.server = EmbeddedServer.start(self.folder)

    async def connect(self, role: BusRole) -> Bus:
        bus = await connect(self.server.address(role), run=self.run, role=role, id=f"{role}-0")
        self._buses.append(bus)
        return bus

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        self.server.stop()


@pytest.fixture
async def fragile(tmp_path: Path) -> AsyncIterator[Fragile]:
    fragile = Fragile(tmp_path / "server")
    await (await fragile.connect("topology")).apply_topology(LogSettings(), WeightsSettings())
    yield fragile
    await fragile.close()


class Relay:
    """Passes bytes between a client and the server; ``deaf`` drops what the server says."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._upstream = server
        self.deaf = False
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._buses: list[Bus] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def connect(self, role: BusRole, run: str) -> Bus:
        address = self._upstream.address(role)
        through = Address(self.url, address.user, address.password)
        bus = await connect(through, run=run, role=role, id=f"{role}-relayed")
        self._buses.append(bus)
        return bus

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(
            "127.0.0.1", int(self._upstream.url.rpartition(":")[2])
        )
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
        for bus in self._buses:
            await bus.close()
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


@pytest.fixture
async def relay(server: EmbeddedServer) -> AsyncIterator[Relay]:
    """A relay to the session's server."""
    relay = Relay(server)
    await relay.start()
    yield relay
    await relay.stop()
