"""What holds for every weights store, whether the files lie in a folder or in NATS."""

from __future__ import annotations

import hashlib
import os

import pytest

from bus import Stored
from schemas import WeightsError
from tests import examples
from tests.bus.weights.conftest import Backend, announced

SIZE = 1_000_000
"""Sixteen chunks, the last of which is short; four pulls."""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_what_was_put_is_fetched_elsewhere(backend: Backend, kind: type) -> None:
    payload = os.urandom(SIZE)
    stored = await backend.store.put(kind(payload), version=1)
    assert (stored.sha256, stored.size_bytes) == (hashlib.sha256(payload).hexdigest(), SIZE)
    folder = await (await backend.elsewhere()).fetch(announced(stored, 1))
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == payload


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 131072])
async def test_any_size_is_cut_and_put_together(backend: Backend, size: int) -> None:
    payload = os.urandom(size)
    stored = await backend.store.put(payload, version=1)
    folder = await (await backend.elsewhere()).fetch(announced(stored, 1))
    assert (folder / "model.safetensors").read_bytes() == payload


async def test_digest_that_is_known_already_is_not_computed_again(backend: Backend) -> None:
    stored = await backend.store.put(b"bytes", version=1, sha256="a" * 64)
    assert stored.sha256 == "a" * 64
    with pytest.raises(WeightsError, match="damaged"):
        await (await backend.elsewhere()).fetch(announced(stored, 1))


async def test_same_weights_twice_are_one_file_with_two_versions(backend: Backend) -> None:
    assert await backend.store.put(b"same", version=1) == await backend.store.put(b"same", version=2)
    assert list(await backend.store.versions()) == [1, 2]
    assert await backend.files() == 1


async def test_damage_is_detected(backend: Backend) -> None:
    stored = await backend.store.put(os.urandom(SIZE), version=1)
    await backend.damage(stored)
    with pytest.raises(WeightsError, match=r"is damaged: its sha256 is [0-9a-f]{64}"):
        await (await backend.elsewhere()).fetch(announced(stored, 1))


async def test_what_lost_its_end_is_not_used_and_putting_again_mends_it(backend: Backend) -> None:
    payload = os.urandom(SIZE)
    stored = await backend.store.put(payload, version=1)
    await backend.shorten(stored)
    with pytest.raises(WeightsError, match=f"has {SIZE - 1} bytes|is incomplete there"):
        await (await backend.elsewhere()).fetch(announced(stored, 1))
    assert await backend.store.put(payload, version=1) == stored
    folder = await (await backend.elsewhere()).fetch(announced(stored, 1))
    assert (folder / "model.safetensors").read_bytes() == payload
    await backend.store.prune()
    assert await backend.files() == 1


async def test_size_that_was_not_announced_is_refused(backend: Backend) -> None:
    stored = await backend.store.put(b"0123456789", version=1)
    fields = {"sha256": stored.sha256, "location": stored.location, "size_bytes": 9}
    with pytest.raises(WeightsError, match="10 bytes"):
        await (await backend.elsewhere()).fetch(examples.weights(version=1, **fields))


async def test_missing_weights_name_the_reasons(backend: Backend) -> None:
    stored = await backend.store.put(b"others", version=1)
    place = stored.location.removesuffix(stored.sha256)
    missing = Stored(sha256=examples.SHA256, location=f"{place}{examples.SHA256}", size_bytes=1)
    with pytest.raises(WeightsError, match=r"weights 5 are not in .*: they were pruned \(weights\.keep is 2\)"):
        await backend.store.fetch(announced(missing, 5))


@pytest.mark.parametrize(
    "location", ["s3://bucket/x", "file:../../etc", "file:", f"file:{'g' * 64}", f"jetstream:other_weights/{'0' * 64}"]
)
async def test_location_of_another_kind_is_refused(backend: Backend, location: str) -> None:
    with pytest.raises(WeightsError, match="is not of this store"):
        await backend.store.fetch(examples.weights(location=location, sha256="0" * 64))


async def test_location_that_is_not_the_announced_digest_is_refused(backend: Backend) -> None:
    stored = await backend.store.put(b"these", version=1)
    with pytest.raises(WeightsError, match="do not use them"):
        await backend.store.fetch(examples.weights(location=stored.location, sha256="0" * 64))


async def test_prune_keeps_the_newest_versions(backend: Backend) -> None:
    stored = [await backend.store.put(f"weights {version}".encode(), version=version) for version in range(12)]
    assert await backend.store.prune() == list(range(10))
    assert list(await backend.store.versions()) == [10, 11]
    assert await backend.files() == 2
    for version in (10, 11):
        await (await backend.elsewhere()).fetch(announced(stored[version], version))
    with pytest.raises(WeightsError):
        await (await backend.elsewhere()).fetch(announced(stored[9], 9))


async def test_versions_that_stay_are_never_pruned(backend: Backend) -> None:
    stored = [await backend.store.put(f"weights {version}".encode(), version=version) for version in range(12)]
    backend.store._stays = lambda version: version % 5 == 0  # type: ignore[attr-defined]
    assert await backend.store.prune() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert list(await backend.store.versions()) == [0, 5, 10, 11]
    for version in (0, 5, 10, 11):
        await (await backend.elsewhere()).fetch(announced(stored[version], version))


async def test_prune_keeps_a_file_that_a_kept_version_shares(backend: Backend) -> None:
    first = await backend.store.put(b"shared", version=0)
    await backend.store.put(b"other", version=1)
    await backend.store.put(b"shared", version=2)
    await backend.store.put(b"last", version=3)
    assert await backend.store.prune() == [0, 1]
    assert list(await backend.store.versions()) == [2, 3]
    await (await backend.elsewhere()).fetch(announced(first, 2))


async def test_a_version_that_was_put_anew_has_its_new_weights_alone(backend: Backend) -> None:
    await backend.store.put(b"before a crash", version=1)
    again = await backend.store.put(b"trained again", version=1)
    assert await backend.store.versions() == {1: again.sha256}
    await backend.store.put(b"before a crash", version=2)
    assert (await backend.store.versions())[1] == again.sha256


async def test_prune_removes_files_of_a_version_that_was_put_anew(backend: Backend) -> None:
    await backend.store.put(b"before a crash", version=1)
    await backend.store.put(b"trained again", version=1)
    assert await backend.store.prune() == []
    assert await backend.files() == 1


async def test_empty_store_has_nothing_to_prune(backend: Backend) -> None:
    assert await backend.store.prune() == []
    assert await backend.store.versions() == {}
