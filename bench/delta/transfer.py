"""From weights in a trainer's memory to a verified file with every receiver, through NATS at the pace of a line.

python -m bench.delta.transfer FOLDER MBIT RECEIVERS PORTION, inside a network namespace; FOLDER has the versions, ``0``
and so on. Prints JSON: seconds for each version from 1 on, whole and as deltas. Trainer, server and receivers share
the line: what is put passes it once, and what is fetched once for each receiver.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.delta.network import shaped
from bench.trials import turns
from bus import Bucket, Bus, Delta, EmbeddedServer, JetStreamWeights, connect, make_delta
from bus.settings import LogSettings, WeightsSettings
from schemas import Weights

SETTINGS = WeightsSettings(store="jetstream", keep=2)
PIECE = 1 << 20
WAYS = ("whole", "delta")


class Payload(NamedTuple):
    """A version, with the digest that a trainer has of it before it publishes."""

    bytes: bytes
    sha256: str


class Run:
    """The trainer's store, and those of the receivers: each with a connection and a cache of its own."""

    def __init__(self, name: str, server: EmbeddedServer, folder: Path) -> None:
        self._name, self._server, self._folder = name, server, folder
        self._buses: list[Bus] = []
        self._receivers: list[JetStreamWeights] = []

    async def begin(self, receivers: int) -> None:
        topology = await self._connect("topology")
        await topology.apply_topology(LogSettings(), SETTINGS)
        self._trainer = await self._store("trainer")
        self._receivers = [await self._store("generator") for _ in range(receivers)]

    async def _store(self, role: str) -> JetStreamWeights:
        bus = await self._connect(role)
        return JetStreamWeights(Bucket(bus), SETTINGS.keep, self._folder / bus.id)

    async def _connect(self, role: str) -> Bus:
        id = f"{self._name}-{len(self._buses)}"
        bus = await connect(self._server.address(role), run=self._name, role=role, id=id)  # type: ignore[arg-type]
        self._buses.append(bus)
        return bus

    async def move(self, version: int, new: Payload, base: Payload | None) -> float:
        """Seconds until every receiver has ``new``; ``base`` is what it is a delta to, which all of them have."""
        began = time.perf_counter()
        if base is None:
            stored = await self._trainer.put(new.bytes, version=version, sha256=new.sha256)
        else:
            delta = await asyncio.to_thread(_delta, base, new)
            stored = await self._trainer.put_delta(delta, version=version)
        weights = Weights(
            run=self._name,
            version=version,
            sha256=stored.sha256,
            size_bytes=stored.size_bytes,
            location=stored.location,
            dtype="bfloat16",
            base=None if base is None else version - 1,
        )
        await asyncio.gather(*(receiver.fetch(weights) for receiver in self._receivers))
        took = time.perf_counter() - began
        await self._trainer.prune()
        return took

    async def end(self) -> None:
        for bus in self._buses:
            await bus.close()


def _delta(base: Payload, new: Payload) -> Delta:
    delta = make_delta(base.bytes, new.bytes, base_sha256=base.sha256, sha256=new.sha256, item_bytes=2)
    assert delta is not None
    return delta


def _payload(path: Path, portion: int) -> Payload:
    """The file, or of ``portion`` pieces of it one in each row of so many, so that all kinds of tensors are in it."""
    whole = path.read_bytes()
    taken = b"".join(whole[begin : begin + PIECE] for begin in range(0, len(whole), portion * PIECE))
    return Payload(taken, hashlib.sha256(taken).hexdigest())


async def _measure(
    server: EmbeddedServer, root: Path, folder: Path, mbit: int, receivers: int, portion: int, versions: int
) -> dict[str, list[float]]:
    runs = {way: Run(way, server, root) for way in WAYS}
    base = _payload(folder / "0", portion)
    for run in runs.values():
        await run.begin(receivers)
    await runs["delta"].move(0, base, None)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    order = iter(turns(list(WAYS), versions - 1))
    for version in range(1, versions):
        new = _payload(folder / str(version), portion)
        for way in (next(order), next(order)):
            with shaped(mbit):
                found[way].append(await runs[way].move(version, new, base if way == "delta" else None))
        print(f"{mbit} Mbit/s, {receivers} receivers: {found}", file=sys.stderr, flush=True)
        base = new
    for run in runs.values():
        await run.end()
    return found


def main() -> None:
    folder, mbit, receivers, portion = Path(sys.argv[1]), *map(int, sys.argv[2:])
    versions = sum(path.name.isdecimal() for path in folder.iterdir())
    with tempfile.TemporaryDirectory() as root:
        server = EmbeddedServer.start(Path(root) / "server")
        try:
            found = asyncio.run(_measure(server, Path(root), folder, mbit, receivers, portion, versions))
        finally:
            server.stop()
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
