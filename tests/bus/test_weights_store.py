"""The weights store."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from bus import Stored, WeightsStore
from schemas import Weights, WeightsError
from tests import examples


def announced(stored: Stored, version: int) -> Weights:
    return examples.weights(
        version=version, sha256=stored.sha256, location=stored.location, size_bytes=stored.size_bytes
    )


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(tmp_path / "weights", keep=2)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_was_put_is_fetched(store: WeightsStore, kind: type) -> None:
    payload = os.urandom(3_000_000)
    sha256 = hashlib.sha256(payload).hexdigest()
    stored = store.put(kind(payload), version=1)
    assert stored == Stored(sha256=sha256, location=f"file:{sha256}", size_bytes=3_000_000)
    folder = store.fetch(announced(stored, 1))
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == payload


def test_same_weights_twice_are_one_file_with_two_versions(store: WeightsStore) -> None:
    assert store.put(b"same", version=1) == store.put(b"same", version=2)
    assert list(store.versions()) == [1, 2]


def test_damaged_byte_is_detected_and_putting_again_mends_it(store: WeightsStore) -> None:
    payload = bytearray(os.urandom(100_000))
    stored = store.put(payload, version=1)
    file = store.fetch(announced(stored, 1)) / "model.safetensors"
    damaged = bytearray(payload)
    damaged[50_000] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(WeightsError, match=r"is damaged: its sha256 is [0-9a-f]{64}, not that of weights 1"):
        store.fetch(announced(stored, 1))
    store.put(payload, version=1)
    assert store.fetch(announced(stored, 1)) == file.parent


def test_truncated_file_is_detected_by_its_size(store: WeightsStore) -> None:
    stored = store.put(b"0123456789", version=1)
    os.truncate(store.fetch(announced(stored, 1)) / "model.safetensors", 5)
    with pytest.raises(WeightsError, match="has 5 bytes, weights 1 were announced with 10"):
        store.fetch(announced(stored, 1))


def test_missing_weights_name_the_reasons(store: WeightsStore) -> None:
    with pytest.raises(WeightsError, match=r"weights 5 are not in .*: they were pruned \(weights\.keep is 2\)"):
        store.fetch(examples.weights(location=f"file:{examples.SHA256}", sha256=examples.SHA256, version=5))


@pytest.mark.parametrize("location", ["s3://bucket/x", "file:../../etc", "file:", f"file:{'g' * 64}"])
def test_location_of_another_kind_is_refused(store: WeightsStore, location: str) -> None:
    with pytest.raises(WeightsError, match="is not of this store"):
        store.fetch(examples.weights(location=location))


def test_location_that_is_not_the_announced_digest_is_refused(store: WeightsStore) -> None:
    stored = store.put(b"these", version=1)
    with pytest.raises(WeightsError, match="do not use them"):
        store.fetch(examples.weights(location=stored.location, sha256="0" * 64))


def test_prune_keeps_the_newest_versions(store: WeightsStore) -> None:
    stored = [store.put(f"weights {version}".encode(), version=version) for version in range(12)]
    assert store.prune() == list(range(10))
    assert list(store.versions()) == [10, 11]
    for version in (10, 11):
        store.fetch(announced(stored[version], version))
    with pytest.raises(WeightsError):
        store.fetch(announced(stored[9], 9))


def test_prune_keeps_a_file_that_a_kept_version_shares(store: WeightsStore) -> None:
    first = store.put(b"shared", version=0)
    store.put(b"other", version=1)
    store.put(b"shared", version=2)
    store.put(b"last", version=3)
    assert store.prune() == [0, 1]
    store.fetch(announced(first, 2))


def test_prune_removes_files_of_a_version_that_was_put_anew(store: WeightsStore, tmp_path: Path) -> None:
    store.put(b"before a crash", version=1)
    store.put(b"trained again", version=1)
    store.prune()
    assert sum(len(path.name) == 64 for path in (tmp_path / "weights").iterdir()) == 1


def test_keep_zero_keeps_all(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path, keep=0)
    for version in range(5):
        store.put(f"{version}".encode(), version=version)
    assert store.prune() == []
    assert list(store.versions()) == [0, 1, 2, 3, 4]


def test_open_file_is_readable_after_it_was_pruned(store: WeightsStore) -> None:
    stored = store.put(b"in use", version=0)
    with (store.fetch(announced(stored, 0)) / "model.safetensors").open("rb") as file:
        store.put(b"1", version=1)
        store.put(b"2", version=2)
        store.prune()
        assert file.read() == b"in use"


def test_failed_write_leaves_nothing_behind_and_says_why(
    store: WeightsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bus.weights_store.os.fsync", full)
    with pytest.raises(WeightsError, match=r"weights 1 \(4 bytes\) cannot be written .*: no disk space left"):
        store.put(b"much", version=1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_empty_store_has_nothing_to_prune(store: WeightsStore) -> None:
    assert store.prune() == []
    assert store.versions() == {}
