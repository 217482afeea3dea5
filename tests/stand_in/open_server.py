"""A NATS server of somebody's own: nats-server with JetStream and no users, as ``nats-server -js`` starts it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bus.server import find_binary

DEADLINE_S = 30.0


@contextmanager
def open_server(store: Path) -> Iterator[str]:
    """Its address, for the length of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store.mkdir(parents=True)
    with (store / "log").open("wb") as log:
        process = subprocess.Popen(
            [find_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(store)], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while "Server is ready" not in (store / "log").read_text():
            assert process.poll() is None, (store / "log").read_text()
            assert time.monotonic() < deadline, (store / "log").read_text()
            time.sleep(0.02)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
