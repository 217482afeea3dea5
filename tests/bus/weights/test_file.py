"""The store of files: what only it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus import FileWeights
from schemas import WeightsError
from tests.bus.weights.conftest import announced


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_putting_again_mends_a_damaged_file(tmp_path: Path) -> None:
    store = FileWeights(tmp_path, 0)
    stored = await store.put(b"weights", version=1)
    file = await store.fetch(announced(stored, 1)) / "model.safetensors"
    file.write_bytes(b"damaged")
    await store.put(b"weights", version=1)
    assert await store.fetch(announced(stored, 1)) == file.parent


async def test_keep_zero_keeps_all(tmp_path: Path) -> None:
    store = FileWeights(tmp_path, keep=0)
    for version in range(5):
        await store.put(f"{version}".encode(), version=version)
    assert await store.prune() == []
    assert list(await store.versions()) == [0, 1, 2, 3, 4]


async def test_open_file_is_readable_after_it_was_pruned(tmp_path: Path) -> None:
    store = FileWeights(tmp_path, keep=2)
    stored = await store.put(b"in use", version=0)
    with (await store.fetch(announced(stored, 0)) / "model.safetensors").open("rb") as file:
        await store.put(b"1", version=1)
        await store.put(b"2", version=2)
        assert await store.prune() == [0]
        assert file.read() == b"in use"


async def test_failed_write_leaves_nothing_behind_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bus.weights.disk.os.fsync", full)
    with pytest.raises(WeightsError, match=r"weights 1 \(4 bytes\) cannot be written .*: no disk space left"):
        await FileWeights(tmp_path, 0).put(b"much", version=1)
    assert files_in(tmp_path) == []
