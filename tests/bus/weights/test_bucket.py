"""Weights in NATS: the layout, reading while removing, and what is left of a put that never ended."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import msgspec
import nats
import pytest

from bus import Denied, EmbeddedServer
from bus.settings import LogSettings
from bus.weights.objects import chunk_subject
from bus.weights.reading import read_object
from bus.weights.sending import _ChunkSender, put_object
from schemas import StreamMismatch, WeightsError
from tests.bus.weights.conftest import BY_NATS, CHUNK, ConnectTo, InNats, announced
from tests.waiting import eventually

SIZE = 1_000_000


class Turnstile:
    """Takes chunks, and waits at the first ones until it is let on."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.payload = b""

    def take(self, pieces: list[bytes]) -> None:
        self.reached.set()
        assert self.open.wait(30)
        self.payload += b"".join(pieces)


async def put_halfway(in_nats: InNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a trainer that is killed before the metadata."""

    async def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bus.weights.sending._announce", die)
        with pytest.raises(KeyboardInterrupt):
            await in_nats.store.put(os.urandom(SIZE), version=1)


async def test_any_nats_client_lists_and_gets_what_was_put(in_nats: InNats, server: EmbeddedServer) -> None:
    payload = os.urandom(SIZE)
    stored = await in_nats.store.put(payload, version=7)
    address = server.address("admin")
    client = await nats.connect(address.url, user=address.user, password=address.password, inbox_prefix=b"_INBOX.admin")
    found = await client.jetstream().object_store(in_nats.bucket.name)
    (info,) = await found.list()
    assert (info.name, info.description, info.size) == (stored.sha256, "weights 7", SIZE)
    assert (await found.get(stored.sha256)).data == payload  # nats-py compares the digest
    await client.close()


async def test_the_same_again_is_not_sent_again(in_nats: InNats) -> None:
    payload = os.urandom(SIZE)
    stored = await in_nats.store.put(payload, version=1)
    chunks = await in_nats.chunk_counts()
    assert await in_nats.store.put(payload, version=2) == stored
    assert await in_nats.chunk_counts() == chunks


async def test_what_is_cached_is_not_read_again(in_nats: InNats) -> None:
    stored = await in_nats.store.put(os.urandom(SIZE), version=1)
    there = await in_nats.elsewhere()
    folder = await there.fetch(announced(stored, 1))
    await in_nats.bucket.remove(await in_nats.info(stored))
    assert await there.fetch(announced(stored, 1)) == folder


async def test_what_is_damaged_in_the_cache_is_read_anew(in_nats: InNats) -> None:
    payload = os.urandom(SIZE)
    stored = await in_nats.store.put(payload, version=1)
    there = await in_nats.elsewhere()
    file = await there.fetch(announced(stored, 1)) / "model.safetensors"
    file.write_bytes(bytes(SIZE))
    await there.fetch(announced(stored, 1))
    assert file.read_bytes() == payload


async def test_the_cache_holds_the_two_newest(in_nats: InNats) -> None:
    there = await in_nats.elsewhere()
    stored = [await in_nats.store.put(b"%d" % version, version=version) for version in range(4)]
    folders = [await there.fetch(announced(each, version)) for version, each in enumerate(stored)]
    assert [folder.exists() for folder in folders] == [False, False, True, True]


async def test_weights_that_are_read_are_not_removed_before_they_were(in_nats: InNats) -> None:
    payload = os.urandom(SIZE)
    stored = await in_nats.store.put(payload, version=1)
    reader, gate = await in_nats.elsewhere(), Turnstile()
    reading = asyncio.create_task(read_object(reader._bucket, await in_nats.info(stored), gate.take))
    await asyncio.to_thread(gate.reached.wait, 30)
    for version in (2, 3):
        await in_nats.store.put(b"newer %d" % version, version=version)
    assert await in_nats.store.prune() == [1]
    assert await in_nats.bucket.info(stored.sha256) is None, "nobody new can find it"
    gate.open.set()
    await reading
    assert gate.payload == payload
    await in_nats.store.prune()
    assert await in_nats.files() == 2, "its chunks go when it was read"


async def test_who_comes_after_the_removal_is_told_that_it_was_pruned(in_nats: InNats) -> None:
    stored = await in_nats.store.put(os.urandom(SIZE), version=1)
    info = await in_nats.info(stored)
    await in_nats.bucket.remove(info)  # and the chunks are still there
    with pytest.raises(WeightsError, match=r"weights 1 was pruned .*: take a newer version"):
        await read_object((await in_nats.elsewhere())._bucket, info, lambda _: None)


async def test_a_reader_that_was_forgotten_is_told_that_it_was_pruned(in_nats: InNats) -> None:
    stored = await in_nats.store.put(os.urandom(SIZE), version=1)
    info, gate = await in_nats.info(stored), Turnstile()
    reader = await in_nats.elsewhere()
    reading = asyncio.create_task(read_object(reader._bucket, info, gate.take))
    await asyncio.to_thread(gate.reached.wait, 30)
    for name in (await in_nats.admin.wire.api(f"CONSUMER.NAMES.{in_nats.bucket.stream}"))["consumers"]:
        await in_nats.admin.wire.api(f"CONSUMER.DELETE.{in_nats.bucket.stream}.{name}")
    await in_nats.bucket.remove(info)
    await in_nats.bucket.sweep()
    gate.open.set()
    with pytest.raises(WeightsError, match="take a newer version"):
        await reading


async def test_a_reader_whose_consumer_is_gone_goes_on_with_another(in_nats: InNats) -> None:
    payload = os.urandom(SIZE)
    stored = await in_nats.store.put(payload, version=1)
    gate = Turnstile()
    reading = asyncio.create_task(
        read_object((await in_nats.elsewhere())._bucket, await in_nats.info(stored), gate.take)
    )
    await asyncio.to_thread(gate.reached.wait, 30)
    for name in (await in_nats.admin.wire.api(f"CONSUMER.NAMES.{in_nats.bucket.stream}"))["consumers"]:
        await in_nats.admin.wire.api(f"CONSUMER.DELETE.{in_nats.bucket.stream}.{name}")
    gate.open.set()
    await reading
    assert gate.payload == payload


async def test_no_reader_is_left_behind(in_nats: InNats) -> None:
    stored = await in_nats.store.put(os.urandom(SIZE), version=1)
    await (await in_nats.elsewhere()).fetch(announced(stored, 1))
    assert (await in_nats.admin.wire.api(f"CONSUMER.NAMES.{in_nats.bucket.stream}"))["total"] == 0


async def test_chunks_of_a_put_that_never_ended_are_removed_later(
    in_nats: InNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_halfway(in_nats, monkeypatch)
    assert await in_nats.files() == 1
    assert await in_nats.store.versions() == {}
    await in_nats.store.put(b"the next trainer's", version=1)
    await in_nats.store.prune()
    assert await in_nats.files() == 1
    assert list(await in_nats.store.versions()) == [1]


async def test_a_put_that_others_interfere_with_is_begun_anew(in_nats: InNats, monkeypatch: pytest.MonkeyPatch) -> None:
    payload, sent, original = os.urandom(SIZE), list[int](), _ChunkSender._send_one

    async def interfere(sender: _ChunkSender, number: int) -> object:
        sent.append(number)
        if len(sent) == 5:
            await in_nats.admin.wire.request(chunk_subject(in_nats.bucket.name, "other"), b"x", timeout_s=5)
        return await original(sender, number)

    monkeypatch.setattr(_ChunkSender, "_send_one", interfere)
    stored = await in_nats.store.put(payload, version=1)
    folder = await (await in_nats.elsewhere()).fetch(announced(stored, 1))
    assert (folder / "model.safetensors").read_bytes() == payload
    assert sent.count(0) == 2
    await in_nats.store.prune()
    assert await in_nats.files() == 1


async def test_a_full_bucket_is_waited_for_and_said(
    in_nats: InNats, connect_to: ConnectTo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.patience.LINE_EVERY_S", 0.05)
    topology = await connect_to("topology")
    await topology.apply_topology(LogSettings(), msgspec.structs.replace(BY_NATS, max_gib=0.001))
    payload = os.urandom(2 * SIZE)
    putting = asyncio.create_task(in_nats.store.put(payload, version=1))

    async def said() -> bool:
        return "the stream is full" in caplog.text

    await eventually(said)
    assert not putting.done()
    assert "raise weights.max_gib and run headrace topology apply" in caplog.text
    await topology.apply_topology(LogSettings(), BY_NATS)
    folder = await (await in_nats.elsewhere()).fetch(announced(await putting, 1))
    assert (folder / "model.safetensors").read_bytes() == payload


async def test_a_bucket_that_is_full_of_leftovers_makes_room_by_itself(
    in_nats: InNats, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = msgspec.structs.replace(BY_NATS, max_gib=1.5 * SIZE / 1024**3)
    await (await connect_to("topology")).apply_topology(LogSettings(), limit)
    await put_halfway(in_nats, monkeypatch)
    payload = os.urandom(SIZE)
    stored = await in_nats.store.put(payload, version=1)
    assert (await (await in_nats.elsewhere()).fetch(announced(stored, 1)) / "model.safetensors").read_bytes() == payload


async def test_a_server_that_takes_no_chunk_of_this_size_is_named(
    in_nats: InNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.weights.sending.CHUNK_BYTES", 16 * 1024 * 1024)
    with pytest.raises(WeightsError, match="raise max_payload in its configuration"):
        await in_nats.store.put(b"bytes", version=1)


async def test_metadata_of_other_bytes_is_not_believed(in_nats: InNats) -> None:
    stored, other = await in_nats.store.put(b"these", version=1), await in_nats.store.put(b"those", version=2)
    lie = msgspec.structs.replace(await in_nats.info(other), name=stored.sha256)
    await in_nats.store_metadata(stored.sha256, msgspec.json.encode(lie))
    with pytest.raises(WeightsError, match="do not use them"):
        await (await in_nats.elsewhere()).fetch(announced(stored, 1))


async def test_more_bytes_than_the_metadata_says_are_not_taken(in_nats: InNats, tmp_path: Path) -> None:
    stored = await in_nats.store.put(os.urandom(3 * CHUNK), version=1)
    lie = msgspec.structs.replace(await in_nats.info(stored), size=10)
    await in_nats.store_metadata(stored.sha256, msgspec.json.encode(lie))
    with pytest.raises(WeightsError, match="should have 10 bytes and has more"):
        await (await in_nats.elsewhere()).fetch(msgspec.structs.replace(announced(stored, 1), size_bytes=10))
    assert not list((tmp_path / "caches").rglob("*model.safetensors*")), "nothing half is left"


async def test_foreign_metadata_is_no_weights(in_nats: InNats) -> None:
    await in_nats.store_metadata("b" * 64, b"not JSON")
    stored = await in_nats.store.put(b"weights", version=1)
    assert await in_nats.store.versions() == {1: stored.sha256}
    await in_nats.store.prune()


async def test_a_role_that_may_not_put_is_told(in_nats: InNats) -> None:
    with pytest.raises(Denied, match=r"generator may not publish to .*\$O\."):
        await (await in_nats.elsewhere()).put(b"not mine to put", version=1)


async def test_run_without_a_bucket_says_how_to_make_one(in_nats: InNats) -> None:
    await in_nats.admin.wire.api(f"STREAM.DELETE.{in_nats.bucket.stream}")
    with pytest.raises(StreamMismatch, match=r"does not exist: run headrace topology apply, with weights\.store"):
        await in_nats.store.versions()


async def test_an_empty_object_can_be_put_and_read(in_nats: InNats) -> None:
    assert await put_object(in_nats.bucket, "empty", memoryview(b""), hashlib.sha256().hexdigest())
    info = await in_nats.bucket.info("empty")
    assert info is not None
    await read_object(in_nats.bucket, info, lambda _: pytest.fail("there is nothing to take"))
