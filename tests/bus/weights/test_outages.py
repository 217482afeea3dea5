"""Weights in NATS while the server or the connection is lost in the middle."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from bus import Bucket, Bus, JetStreamWeights
from bus.settings import LogSettings
from bus.weights.objects import chunk_subject
from bus.weights.reading import read_object
from bus.weights.sending import _ChunkSender
from tests.bus.conftest import Fragile, Relay
from tests.bus.weights.conftest import BY_NATS, CHUNK, InNats, announced
from tests.waiting import eventually

CHUNKS = 400
SIZE = CHUNKS * CHUNK


@pytest.fixture
def nearly_all(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No put ends before this is set: its last chunks wait for it. All others are sent as ever."""
    original, go_on = _ChunkSender._send_one, asyncio.Event()

    async def send_one(sender: _ChunkSender, number: int) -> object:
        if number > 7 * CHUNKS // 8:
            await go_on.wait()
        return await original(sender, number)

    monkeypatch.setattr(_ChunkSender, "_send_one", send_one)
    return go_on


class Place:
    """A store on a server that can be killed."""

    def __init__(self, fragile: Fragile, trainer: Bus, generator: Bus, folder: Path) -> None:
        self.fragile, self.bucket = fragile, Bucket(trainer)
        self.store = JetStreamWeights(self.bucket, 2, folder / "trainer")
        self.elsewhere = JetStreamWeights(Bucket(generator), 2, folder / "generator")

    async def chunks(self) -> int:
        """All that are stored."""
        state = await self.bucket._state(chunk_subject(self.bucket.name, "*"))
        return sum((state.get("subjects") or {}).values())


@pytest.fixture
async def place(fragile: Fragile, tmp_path: Path) -> Place:
    await (await fragile.connect("topology")).apply_topology(LogSettings(), BY_NATS)
    return Place(fragile, await fragile.connect("trainer"), await fragile.connect("generator"), tmp_path)


async def test_a_put_goes_on_when_the_server_is_back_and_stores_each_chunk_once(
    place: Place, nearly_all: asyncio.Event
) -> None:
    payload = os.urandom(SIZE)
    putting = asyncio.create_task(place.store.put(payload, version=1))

    async def begun() -> bool:
        return await place.chunks() > CHUNKS // 8

    await eventually(begun)
    place.fragile.kill()
    nearly_all.set()
    place.fragile.start()
    stored = await putting
    assert await place.chunks() == CHUNKS
    folder = await place.elsewhere.fetch(announced(stored, 1))
    assert (folder / "model.safetensors").read_bytes() == payload


async def test_a_fetch_goes_on_when_the_server_is_back_and_reads_nothing_twice(place: Place) -> None:
    payload = os.urandom(SIZE)
    stored = await place.store.put(payload, version=1)
    info = await place.bucket.info(stored.sha256)
    assert info is not None
    begun, killed, taken = threading.Event(), threading.Event(), list[bytes]()

    def take(pieces: list[bytes]) -> None:
        begun.set()
        assert killed.wait(30)
        taken.extend(pieces)

    reading = asyncio.create_task(read_object(place.elsewhere._bucket, info, take))
    await asyncio.to_thread(begun.wait, 30)
    place.fragile.kill()
    killed.set()
    place.fragile.start()
    await reading
    assert b"".join(taken) == payload


async def test_what_was_put_is_there_after_the_server_was_killed(place: Place) -> None:
    stored = await place.store.put(os.urandom(SIZE), version=1)
    place.fragile.kill()
    place.fragile.start()
    await place.elsewhere.fetch(announced(stored, 1))
    assert await place.store.versions() == {1: stored.sha256}


async def test_chunks_whose_answers_were_lost_are_stored_once(
    in_nats: InNats, relay: Relay, nearly_all: asyncio.Event
) -> None:
    bus = await relay.connect("trainer", in_nats.bucket.bus.run)
    payload = os.urandom(SIZE)
    putting = asyncio.create_task(in_nats.through(bus).put(payload, version=1))
    counts = [0]

    async def looked() -> int:
        counts.append(sum((await in_nats.chunk_counts()).values()))
        return counts[-1]

    async def begun() -> bool:
        return await looked() > 0

    async def still() -> bool:
        return await looked() == counts[-2]

    await eventually(begun)
    relay.deaf = True
    await eventually(still)  # what flies is stored, and nobody is told
    assert counts[-1] < CHUNKS
    nearly_all.set()
    relay.deaf = False
    relay.cut()
    stored = await putting
    assert list((await in_nats.chunk_counts()).values()) == [CHUNKS]
    folder = await (await in_nats.elsewhere()).fetch(announced(stored, 1))
    assert (folder / "model.safetensors").read_bytes() == payload
