"""The store of files: what only it does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus import FileWeights
from schemas import WeightsError
from tests.bus.weights.conftest import announced
from tests.disks import fill, mounted
from tests.waiting import eventually


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
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("bus.weights.disk.os.fsync", broken)
    with pytest.raises(WeightsError, match=r"weights 1 \(4 bytes\) cannot be written .*: Input/output error"):
        await FileWeights(tmp_path, 0).put(b"much", version=1)
    assert files_in(tmp_path) == []


async def test_full_disk_is_waited_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def said() -> bool:
        return "no disk space left: free some" in caplog.text

    monkeypatch.setattr("bus.patience.LINE_EVERY_S", 0.0)
    caplog.set_level("INFO")
    with mounted(tmp_path / "disk", size_mib=1) as disk:
        ballast = fill(disk)
        putting = asyncio.create_task(FileWeights(disk / "weights", 0).put(bytes(4096), version=1))
        await eventually(said)
        assert not putting.done()
        ballast.unlink()
        stored = await putting
    assert "writing weights 1: done after" in caplog.text
    assert stored.size_bytes == 4096
