"""A NATS server with the configuration that ships, deploy/, and keys that were just made, as a process of the test."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from bus import Address, BusRole, make_keys
from bus.server import find_binary

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
DEADLINE_S = 30.0


def free_ports(count: int) -> list[int]:
    """Ports that differ: each is held until all are found, or the system may give one twice."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class RealServer:
    """Files in ``folder``: the keys, deploy's files beside them, the store. Only addresses and paths are changed."""

    def __init__(
        self,
        folder: Path,
        runs: Sequence[str],
        *,
        config: str = "nats.conf",
        flags: Sequence[str | Path] = (),
        ports: Sequence[int] = (),
    ) -> None:
        """``ports``: for clients and for HTTP; free ones where none are given."""
        self.folder = folder
        make_keys(folder, runs)
        for file in ("nats.conf", "tls.conf", "container.conf"):
            text = (DEPLOY / file).read_text(encoding="utf-8")
            for there, here in (
                ('"0.0.0.0:', '"127.0.0.1:'),
                ('"/data"', f'"{folder / "store"}"'),
                ("/etc/nats/server", str(folder / "server")),
            ):
                text = text.replace(there, here)
            (folder / file).write_text(text, encoding="utf-8")
        self.port, self._http_port = ports or free_ports(2)
        at = ("--port", str(self.port), "--http_port", str(self._http_port))
        self._command = [find_binary(), "--config", folder / config, *at, *flags]

    def start(self) -> RealServer:
        """Start it, and return when it takes clients and JetStream is ready."""
        self.launch()
        self.await_ready()
        return self

    def launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)

    def await_ready(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self._healthy():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def _healthy(self) -> bool:
        url = f"http://127.0.0.1:{self._http_port}/healthz?js-enabled-only=true"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def make_keys(self, runs: Sequence[str]) -> None:
        """Make keys that are missing, and have the running server read who its users are."""
        make_keys(self.folder, runs)
        self._process.send_signal(signal.SIGHUP)

    def address(self, role: BusRole) -> Address:
        return Address(f"nats://127.0.0.1:{self.port}", nkey=self.folder / role / "nkey")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
