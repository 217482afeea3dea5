"""A NATS server of somebody's own: nats-server with JetStream and no users, as ``nats-server -js`` starts it.

Unlike there, the room that its streams may reserve does not depend on how full this machine's disk is.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bus.server import find_binary

DEADLINE_S = 30.0
CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", max_file_store: 1TB }}
"""


@contextmanager
def open_server(store: Path) -> Iterator[str]:
    """Its address, for the length of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store.mkdir(parents=True)
    (store / "server.conf").write_text(CONFIG.format(port=port, store=store))
    with (store / "log").open("wb") as log:
        process = subprocess.Popen([find_binary(), "-c", str(store / "server.conf")], stdout=log, stderr=log)
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
