"""Moving weights: through NATS, by its chunks; through a shared folder; and with nats-py's own object store.

python -m bench.weights [MB]: put, fetch and verify that many megabytes (270: SmolLM2-135M in bfloat16), against an
embedded server on this machine, a different content each time. The best of three, since other programs disturb.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import nats

from bench.report import Reach, arguments, report
from bus import Bucket, Bus, EmbeddedServer, FileWeights, JetStreamWeights, Stored, WeightsStore, connect
from bus.settings import LogSettings, WeightsSettings
from bus.weights import sending
from schemas import Weights

T = TypeVar("T")
MEGABYTE = 1_000_000
TRIES = 3
CHUNKS_KIB = (128, 512, 2048)
THEIRS_MB = 20
"""nats-py's get takes time that grows with the square of the size, so it gets less."""
SETTINGS = WeightsSettings(store="jetstream", keep=1, max_gib=8.0)


def announced(stored: Stored, version: int) -> Weights:
    return Weights(
        run="bench", version=version, sha256=stored.sha256, size_bytes=stored.size_bytes, location=stored.location,
        dtype="bfloat16",
    )  # fmt: skip


class Payloads:
    """Random bytes that differ each time."""

    def __init__(self, size_bytes: int) -> None:
        self._bytes = bytearray(os.urandom(size_bytes))
        self.version = 0

    def next(self) -> bytes:
        self.version += 1
        self._bytes[:8] = self.version.to_bytes(8, "big")
        return bytes(self._bytes)


async def rates(store: WeightsStore, payloads: Payloads) -> tuple[float, float, float]:
    """MB/s of putting and of fetching, digests included; and the longest time that the loop was blocked, in s."""
    puts, fetches, blocked = [], [], 0.0
    for _ in range(TRIES):
        payload = payloads.next()
        put_s, stored, blocked_put = await timed(lambda payload=payload: store.put(payload, version=payloads.version))
        weights = announced(stored, payloads.version)
        fetch_s, _, blocked_fetch = await timed(lambda weights=weights: store.fetch(weights))
        await store.prune()
        puts.append(len(payload) / MEGABYTE / put_s)
        fetches.append(len(payload) / MEGABYTE / fetch_s)
        blocked = max(blocked, blocked_put, blocked_fetch)
    return max(puts), max(fetches), blocked


async def timed(act: Callable[[], Awaitable[T]]) -> tuple[float, T, float]:
    """Seconds that ``act`` took, its answer, and the longest time in which nothing else could run."""
    longest, stop = 0.0, asyncio.Event()

    async def tick() -> None:
        nonlocal longest
        while not stop.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began - 0.001)

    ticking = asyncio.create_task(tick())
    began = time.perf_counter()
    answer = await act()
    took = time.perf_counter() - began
    stop.set()
    await ticking
    return took, answer, longest


async def theirs(server: EmbeddedServer, bucket: str, payload: bytes) -> tuple[float, float]:
    """MB/s of putting and getting with nats-py's object store."""
    address = server.address("admin")
    client = await nats.connect(address.url, user=address.user, password=address.password, inbox_prefix=b"_INBOX.admin")
    store = await client.jetstream(timeout=60.0).object_store(bucket)
    began = time.perf_counter()
    await store.put("theirs", payload)
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    assert (await store.get("theirs")).data == payload
    get_s = time.perf_counter() - began
    await client.close()
    return len(payload) / MEGABYTE / put_s, len(payload) / MEGABYTE / get_s


async def measure(server: EmbeddedServer, bus: Bus, root: Path, size_bytes: int) -> None:
    await bus.apply_topology(LogSettings(), SETTINGS)
    bucket, payloads, rows = Bucket(bus), Payloads(size_bytes), []
    ours = JetStreamWeights(bucket, SETTINGS.keep, root / "cache")
    put, fetch, blocked_s = await rates(ours, payloads)
    rows.append((f"NATS, chunks of {sending.CHUNK_BYTES >> 10} KiB: put, fetch", f"{put:.0f}, {fetch:.0f} MB/s"))
    rows.append(("  longest time that the event loop was blocked", f"{1e3 * blocked_s:.0f} ms"))
    chosen = sending.CHUNK_BYTES
    for kib in CHUNKS_KIB:
        if kib * 1024 != chosen:
            sending.CHUNK_BYTES = kib * 1024
            other = await rates(ours, payloads)
            rows.append((f"NATS, chunks of {kib} KiB: put, fetch", f"{other[0]:.0f}, {other[1]:.0f} MB/s"))
    sending.CHUNK_BYTES = chosen
    files = await rates(FileWeights(root / "weights", SETTINGS.keep), payloads)
    rows.append(("folder: put, fetch", f"{files[0]:.0f}, {files[1]:.0f} MB/s"))
    small = await theirs(server, bucket.name, os.urandom(THEIRS_MB * MEGABYTE))
    rows.append((f"nats-py's object store, {THEIRS_MB} MB: put, get", f"{small[0]:.0f}, {small[1]:.0f} MB/s"))
    reaches = [
        Reach("putting through NATS, MB/s", 100.0, put, "higher"),
        Reach("fetching through NATS, MB/s", 100.0, fetch, "higher"),
    ]
    report(f"weights of {size_bytes / MEGABYTE:.0f} MB, sha256 included", rows, reaches)


async def run(server: EmbeddedServer, root: Path, size_bytes: int) -> None:
    bus = await connect(server.address("admin"), run="bench", role="admin", id="bench")
    try:
        await measure(server, bus, root, size_bytes)
    finally:
        await bus.close()


def main() -> None:
    megabytes = int(next(iter(arguments()), 270))
    with tempfile.TemporaryDirectory() as root:
        server = EmbeddedServer.start(Path(root) / "server")
        try:
            asyncio.run(run(server, Path(root), megabytes * MEGABYTE))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
