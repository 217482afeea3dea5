"""A network namespace of its own, whose loopback is as slow as a line is: it takes root, and Debian's iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

BURST, QUEUE = "256kb", "4mb"
"""A token bucket's depth, of four packets of a loopback, and what may wait for it."""


class NoNamespace(Exception):
    """Why there can be none here."""


@contextmanager
def namespace() -> Iterator[str]:
    """Name of a network namespace with a loopback. Raises NoNamespace."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise NoNamespace("there is no ip or tc here: apt install iproute2")
    name = f"headrace-bench-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        raise NoNamespace(f"ip netns add: {made.stderr.strip() or 'refused'}; it takes root")
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


@contextmanager
def shaped(mbit: int) -> Iterator[None]:
    """The loopback of the namespace that this process is in, at ``mbit`` Mbit/s for all that passes it together."""
    device = ["dev", "lo", "root"]
    tbf = ["tbf", "rate", f"{mbit}mbit", "burst", BURST, "limit", QUEUE]
    subprocess.run(["tc", "qdisc", "replace", *device, *tbf], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", *device], check=True)
