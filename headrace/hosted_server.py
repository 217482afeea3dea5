"""The embedded server of a run on one machine: started again when it dies, on its store, port and credentials."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from bus import Address, BusRole, EmbeddedServer

from .folder import RunFolder


class HostedServer:
    """Start it from the main thread: the server is killed when the thread that started it ends."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises ServerUnreachable or ServerUnfit when it cannot be started."""
        self._folder = folder
        self._server = self._start()

    def _start(self) -> EmbeddedServer:
        return EmbeddedServer.start(self._folder.nats, run=self._folder.name)

    @property
    def pid(self) -> int:
        """Process id of the server that runs now."""
        return self._server.pid

    def address(self, role: BusRole) -> Address:
        return self._server.address(role)

    async def keep(self, on_restart: Callable[[], None]) -> None:
        """Start it again whenever it dies, until cancelled; clients come back by themselves.

        Raises ServerUnreachable or ServerUnfit when it cannot be started again: the port was taken, the disk is full.
        """
        while True:
            await _ended(self._server)
            on_restart()
            # Blocks for the fraction of a second that the server needs: nothing can be done without it.
            self._server = self._start()

    def stop(self) -> None:
        self._server.stop()


async def _ended(server: EmbeddedServer) -> None:
    """Return when the server's process has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    handle = os.pidfd_open(server.pid)
    loop.add_reader(handle, ended.set)
    try:
        while server.running:
            await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
