"""The embedded server of a run on one machine: started again when it dies, on its store, port and credentials.

It is started again, too, when it has met a full disk and there is room now: a stream whose write failed once stores
nothing more until then, and answers no publisher (seen with nats-server 2.15). Its log is the only place that says so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from bus import LEAST_FREE_BYTES, Address, BusRole, EmbeddedServer
from schemas import ServerUnfit, ServerUnreachable

from .folder import RunFolder

LOOK_EVERY_S = 1.0
SAY_EVERY_S = 10.0
RESTART_EVERY_S = 10.0
"""A disk that is full in a way that its free bytes do not show must not keep the server restarting."""
PORT_TRIES = 10
"""Attempts to have its port again: a client's own connection may have got it while nothing listened there."""
NO_SPACE = ("no space left on device", "disk quota exceeded")


class HostedServer:
    """Start it from the main thread: the server is killed when the thread that started it ends."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises ServerUnreachable or ServerUnfit when it cannot be started."""
        self._folder = folder
        self._server = EmbeddedServer.start(folder.nats, run=folder.name)

    @property
    def pid(self) -> int:
        """Process id of the server that runs now."""
        return self._server.pid

    def address(self, role: BusRole) -> Address:
        return self._server.address(role)

    async def keep(self, say: Callable[[str], None]) -> None:
        """Start it again whenever it dies or cannot store any more, until cancelled; clients come back by themselves.

        ``say`` is told. A full disk is waited out. Raises ServerUnreachable when it cannot be started again: the port
        was taken.
        """
        while True:
            say(await self._until_unusable(say))
            # Both block for the fraction of a second that the server needs: nothing can be done without it.
            self._server.stop()
            await self._start_again(say)

    async def _until_unusable(self, say: Callable[[str], None]) -> str:
        """Why it must be started again."""
        refusals = Refusals(self._folder.nats / "logs" / "nats.log")
        disk = FullDisk(self._folder.nats, say)
        ended = asyncio.create_task(_ended(self._server))
        began, refused = time.monotonic(), False
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=LOOK_EVERY_S)
                refused = refusals.more() or refused
                if refused and not disk.tell() and time.monotonic() - began > RESTART_EVERY_S:
                    return "nats-server has met a full disk and stores nothing more: it is started again, there is room"
            return "nats-server has died and is started again"
        finally:
            ended.cancel()

    async def _start_again(self, say: Callable[[str], None]) -> None:
        """On the port that it had: nobody looks for it anywhere else."""
        disk, tries, port = FullDisk(self._folder.nats, say), 0, self._server.port
        while True:
            try:
                self._server = EmbeddedServer.start(self._folder.nats, port=port, run=self._folder.name)
                return
            except ServerUnfit:
                if not disk.tell():
                    raise
            except ServerUnreachable as error:
                tries += 1
                if tries == PORT_TRIES:
                    raise
                say(f"nats-server cannot be started yet: {error}")
            await asyncio.sleep(LOOK_EVERY_S)

    def wake(self) -> None:
        """Let it go on where a signal stopped it."""
        self._server.wake()

    def stop(self) -> None:
        self._server.stop()


class Refusals:
    """What the server's log says of messages that it could not store for lack of space, from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size

    def more(self) -> bool:
        """Whether there are some since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            lines = file.read()
        # What follows the last line break is not finished: it is read next time.
        whole = lines.rpartition(b"\n")[0]
        self._at += len(whole)
        text = whole.decode("utf-8", "replace").lower()
        return any(words in text for words in NO_SPACE)


class FullDisk:
    """Tells people that the disk is full, now and then, for as long as it is."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._said_at: float | None = None

    def tell(self) -> bool:
        """Whether it is full."""
        free = shutil.disk_usage(self._folder).free
        if free >= LEAST_FREE_BYTES:
            return False
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            self._say(
                f"the disk of {self._folder} is full ({free} bytes free): nothing can be stored, publishers wait; make "
                f"room for {LEAST_FREE_BYTES // 1024**2} MiB, and the run goes on"
            )
        return True


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
