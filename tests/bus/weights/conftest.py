"""Both backends of the weights store, with the means to hurt what they have stored."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from bus import Bucket, Bus, BusRole, EmbeddedServer, FileWeights, JetStreamWeights, Stored, WeightsStore, connect
from bus.settings import LogSettings, WeightsSettings
from bus.weights.objects import ObjectInfo, chunk_subject, meta_subject
from schemas import Weights
from tests import examples

KEEP = 2
CHUNK = 64 * 1024
BY_NATS = WeightsSettings(store="jetstream", keep=KEEP, max_gib=0.25)
_numbers = itertools.count(1)
ConnectTo = Callable[[BusRole], Awaitable[Bus]]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks and several pulls for little data."""
    monkeypatch.setattr("bus.weights.sending.CHUNK_BYTES", CHUNK)
    monkeypatch.setattr("bus.weights.sending.FLYING_BYTES", 8 * CHUNK)
    monkeypatch.setattr("bus.weights.reading.BATCH_BYTES", 4 * CHUNK)


def announced(stored: Stored, version: int) -> Weights:
    return examples.weights(
        version=version, sha256=stored.sha256, location=stored.location, size_bytes=stored.size_bytes
    )


@pytest.fixture
async def connect_to(server: EmbeddedServer) -> AsyncIterator[ConnectTo]:
    """Connects, in a role, to a fresh run that has a bucket."""
    run, buses = f"weights{next(_numbers)}", list[Bus]()

    async def factory(role: BusRole) -> Bus:
        bus = await connect(server.address(role), run=run, role=role, id=f"{role}-{len(buses)}")
        buses.append(bus)
        return bus

    await (await factory("topology")).apply_topology(LogSettings(), BY_NATS)
    yield factory
    for bus in buses:
        await bus.close()


class Backend(Protocol):
    """A store, and what only a test does to it."""

    store: WeightsStore

    async def elsewhere(self) -> WeightsStore:
        """The store as another machine sees it."""
        ...

    async def damage(self, stored: Stored) -> None:
        """Have other bytes of the same size."""
        ...

    async def shorten(self, stored: Stored) -> None:
        """Lose the end."""
        ...

    async def files(self) -> int:
        """How many different weights take up room."""
        ...

    async def damage_delta(self, stored: Stored) -> None:
        """Have other bytes in what makes these weights."""
        ...

    async def lose(self, stored: Stored) -> None:
        """Have the whole file no longer."""
        ...


class Folder:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.store = FileWeights(root, KEEP)

    async def elsewhere(self) -> WeightsStore:
        return FileWeights(self._root, KEEP)

    async def damage(self, stored: Stored) -> None:
        file = self._root / stored.sha256 / "model.safetensors"
        payload = bytearray(file.read_bytes())
        payload[len(payload) // 2] ^= 1
        file.write_bytes(payload)

    async def shorten(self, stored: Stored) -> None:
        os.truncate(self._root / stored.sha256 / "model.safetensors", stored.size_bytes - 1)

    async def files(self) -> int:
        wholes = sum(len(path.name) == 64 for path in self._root.iterdir())
        return wholes + len(list((self._root / "deltas").glob("*")))

    async def damage_delta(self, stored: Stored) -> None:
        (file,) = (self._root / "deltas").glob(f"{stored.sha256}.*")
        file.write_bytes(file.read_bytes()[:-1] + b"?")

    async def lose(self, stored: Stored) -> None:
        shutil.rmtree(self._root / stored.sha256)


class InNats:
    def __init__(self, connect_to: ConnectTo, trainer: Bus, admin: Bus, folder: Path) -> None:
        self._connect_to, self.admin, self._folder = connect_to, admin, folder
        self._caches = itertools.count(1)
        self.bucket = Bucket(trainer)
        self.store = self.through(trainer)

    def through(self, bus: Bus) -> JetStreamWeights:
        """The store through a connection, with a cache of its own."""
        return JetStreamWeights(Bucket(bus), KEEP, self._folder / str(next(self._caches)))

    async def elsewhere(self) -> JetStreamWeights:
        return self.through(await self._connect_to("generator"))

    async def info(self, stored: Stored) -> ObjectInfo:
        info = await self.bucket.info(stored.sha256)
        assert info is not None
        return info

    async def damage(self, stored: Stored) -> None:
        await self._damage(await self.info(stored))

    async def damage_delta(self, stored: Stored) -> None:
        info = await self.bucket.info(f"{stored.sha256}.delta")
        assert info is not None
        await self._damage(info)

    async def _damage(self, info: ObjectInfo) -> None:
        last = await self.lose_last_chunk(info)
        payload = bytes(info.size - last * CHUNK)
        await self.admin.wire.request(chunk_subject(self.bucket.name, info.nuid), payload, timeout_s=5)

    async def lose(self, stored: Stored) -> None:
        await self.bucket.remove(await self.info(stored))
        await self.bucket.sweep()

    async def shorten(self, stored: Stored) -> None:
        await self.lose_last_chunk(await self.info(stored))

    async def lose_last_chunk(self, info: ObjectInfo) -> int:
        """Returns its number, from 0."""
        query = {"last_by_subj": chunk_subject(self.bucket.name, info.nuid)}
        message = (await self.admin.wire.api(f"STREAM.MSG.GET.{self.bucket.stream}", query))["message"]
        await self.admin.wire.api(f"STREAM.MSG.DELETE.{self.bucket.stream}", {"seq": message["seq"]})
        return info.chunks - 1

    async def store_metadata(self, name: str, payload: bytes) -> None:
        """Have the bucket say anything about an object."""
        subject = meta_subject(self.bucket.name, name)
        await self.admin.wire.request(subject, payload, {"Nats-Rollup": "sub"}, timeout_s=5)

    async def files(self) -> int:
        return len(await self.chunk_counts())

    async def chunk_counts(self) -> dict[str, int]:
        """Chunks by subject, as the stream has them."""
        body = {"subjects_filter": chunk_subject(self.bucket.name, "*")}
        state = (await self.admin.wire.api(f"STREAM.INFO.{self.bucket.stream}", body))["state"]
        return dict(state.get("subjects") or {})


@pytest.fixture
async def in_nats(connect_to: ConnectTo, tmp_path: Path) -> InNats:
    return InNats(connect_to, await connect_to("trainer"), await connect_to("admin"), tmp_path / "caches")


@pytest.fixture(params=["file", "jetstream"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, in_nats: InNats) -> Backend:
    return in_nats if request.param == "jetstream" else Folder(tmp_path / "weights")
