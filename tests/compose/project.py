"""One Compose project of compose.yaml, apart from any other on this machine, and its run as a reader sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil

from bus import Address, connect
from headrace.view import RunView
from headrace.watch import Watch
from tests.compose.docker_engine import DockerEngine, call

PATIENCE_S = 600.0
"""Most time for anything that is waited for: three engines that start on two cores need two minutes."""


class Project:
    """``files`` of the repository under a project name and run of their own, with ports that are free."""

    def __init__(self, engine: DockerEngine, name: str, keys: Path, files: Sequence[str] = ("compose.yaml",)) -> None:
        self.engine = engine
        self.name = name
        self.run = name.replace("-", "_")
        self.keys = keys
        self.port = _free_port()
        self._began = time.monotonic()
        self._files = [word for file in files for word in ("--file", file)]
        self._environment = {
            "COMPOSE_PROJECT_NAME": name,
            "HEADRACE_IMAGE": "headrace-compose-test",
            "HEADRACE_RUN": self.run,
            "HEADRACE_KEYS": str(keys),
            "HEADRACE_NATS_PORT": str(self.port),
            "HEADRACE_MONITORING_PORT": str(_free_port()),
        }

    def say(self, what: str) -> None:
        """A line of progress: these tests take minutes."""
        print(f"[{time.monotonic() - self._began:5.0f} s] {what}", flush=True)

    def compose(self, *arguments: str) -> str:
        """What ``docker compose`` prints, without a ``.env`` of whoever runs this."""
        command = [*self.engine.compose, "--env-file", os.devnull, *self._files, *arguments]
        return call(command, {**os.environ, **self._environment})

    def up(self, *arguments: str, options: str = "") -> None:
        """``docker compose up``, in the background. ``options``: HEADRACE_OPTIONS, kept for later calls."""
        self._environment["HEADRACE_OPTIONS"] = options
        self.say(f"up {' '.join(arguments)} {options}")
        self.compose("up", "--detach", "--no-build", "--quiet-pull", *arguments)

    def down(self, *arguments: str) -> None:
        self.say(f"down {' '.join(arguments)}")
        self.compose("down", "--remove-orphans", *arguments)

    def containers(self, service: str) -> list[str]:
        """Ids of the service's containers, oldest first."""
        found = self.compose("ps", "--all", "--quiet", "--no-trunc", service).split()
        return sorted(found, key=lambda each: str(self.inspect(each)["Created"]))

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.run("inspect", container))[0]
        return found

    def pid(self, container: str) -> int:
        """Of its first process, on this machine; 0 while it does not run."""
        return int(self.inspect(container)["State"]["Pid"])

    def restarts(self, container: str) -> int:
        return int(self.inspect(container)["RestartCount"])

    def health(self, container: str) -> str:
        """``starting``, ``healthy`` or ``unhealthy``."""
        return str(self.inspect(container)["State"]["Health"]["Status"])

    def says(self, container: str) -> str:
        """All that it has logged."""
        return self.engine.logs(container)

    def kill(self, container: str) -> None:
        """SIGKILL from outside, as a crash: `docker kill` would count as stopped by hand."""
        pid = self.pid(container)
        assert pid > 0, f"{container} does not run"
        os.kill(pid, signal.SIGKILL)

    @contextmanager
    def frozen(self, container: str) -> Iterator[None]:
        """Its processes, but for the init process that Docker puts before them, are stopped within the block."""
        inside = psutil.Process(self.pid(container)).children(recursive=True)
        for process in inside:
            process.suspend()
        self.say(f"{container[:12]} is frozen")
        try:
            yield
        finally:
            for process in inside:
                process.resume()

    @asynccontextmanager
    async def cut_off(self, container: str) -> AsyncIterator[None]:
        """The container has no network within the block."""
        network = f"{self.name}_default"
        self.engine.run("network", "disconnect", network, container)
        self.say(f"{container[:12]} is cut off")
        try:
            yield
        finally:
            self.engine.run("network", "connect", network, container)
            self.say(f"{container[:12]} is connected again")

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return once it holds. Fails with the containers' last words after PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                words = f"{self.compose('ps', '--all')}\n{self.compose('logs', '--tail', '15')}"
                raise AssertionError(f"not within {PATIENCE_S:g} s: {what}\n{words}")
            await asyncio.sleep(0.2)
        self.say(what)

    def headrace(self, *arguments: str) -> str:
        """What a command of Headrace prints, given by an operator on this machine."""
        variables = {"HEADRACE_NATS_NKEY": str(self.keys / "operator" / "nkey")}
        command = [sys.executable, "-m", "headrace", *arguments, "--server", self.address.url]
        return call(command, {**os.environ, **variables})

    @property
    def address(self) -> Address:
        """The reader's, from this machine."""
        return Address(f"nats://127.0.0.1:{self.port}", nkey=self.keys / "reader" / "nkey")

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[RunView]:
        """The run's state, kept up to date."""
        bus = await connect(self.address, run=self.run, role="reader", id="test")
        watch = Watch(bus)
        try:
            await watch.catch_up()
            async with watch.following():
                yield watch.view
        finally:
            await bus.close()

    async def steps(self, view: RunView, more: int) -> None:
        """Wait until ``more`` steps than now are committed."""
        wanted = view.committed + more
        await self.until(lambda: view.committed >= wanted, f"step {wanted} is committed")

    def remove(self) -> None:
        """Everything but the image."""
        with contextlib.suppress(AssertionError):
            self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5")
            if left := self.engine.run("volume", "ls", "--quiet", "--filter", f"name={self.name}_").split():
                self.engine.run("volume", "rm", *left)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
