"""Weights in a folder that trainer and generators all see.

    ROOT/<sha256>/model.safetensors     what an engine loads
    ROOT/versions/<version>             the sha256 that the version has

A file is written aside, made durable, and only then moved to its name: what has a name is whole.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from bus.patience import Patience
from schemas import Weights, WeightsError

from .disk import MEND, for_lack_of_space, reason, sha256_of, sha256_of_bytes, sync_folder, write_durably
from .store import FILE, Payload, Stays, Stored, announced_sha256, is_sha256, kept_versions, none_stays

PLACE = "file:"


class FileWeights:
    """A WeightsStore in the folder ``root``."""

    def __init__(self, root: Path, keep: int, stays: Stays = none_stays) -> None:
        """``keep``: how many of the newest versions ``prune`` leaves, besides those that ``stays``; 0 keeps all."""
        self._root = root
        self._keep = keep
        self._stays = stays

    async def put(self, payload: Payload, *, version: int, sha256: str | None = None) -> Stored:
        """See WeightsStore. The file is written even if it is there, without being copied in memory.

        A full disk is waited out, for ever, with a log line each 10 s.
        """
        patience = Patience(f"writing weights {version}")
        while True:
            try:
                stored = await asyncio.to_thread(self._put, memoryview(payload).cast("B"), version, sha256)
            except WeightsError as error:
                if not for_lack_of_space(error):
                    raise
                await patience.pause(str(error))
                continue
            patience.rewarded()
            return stored

    async def fetch(self, weights: Weights) -> Path:
        """See WeightsStore. An engine that has the file open goes on reading it after it was pruned."""
        return await asyncio.to_thread(self._fetch, weights)

    async def versions(self) -> dict[int, str]:
        """See WeightsStore."""
        return await asyncio.to_thread(self._versions)

    async def prune(self) -> list[int]:
        """See WeightsStore. A file that a kept version shares with a removed one stays."""
        return await asyncio.to_thread(self._prune)

    def _put(self, view: memoryview, version: int, sha256: str | None) -> Stored:
        sha256 = sha256 or sha256_of_bytes(view)
        try:
            folder = self._root / sha256
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(folder / FILE, view)
            versions = self._root / "versions"
            versions.mkdir(exist_ok=True)
            write_durably(versions / str(version), memoryview(sha256.encode()))
            sync_folder(self._root)
        except OSError as error:
            raise WeightsError(
                f"weights {version} ({view.nbytes} bytes) cannot be written to {self._root}: {reason(error)}"
            ) from error
        return Stored(sha256=sha256, location=f"{PLACE}{sha256}", size_bytes=view.nbytes)

    def _fetch(self, weights: Weights) -> Path:
        what = f"weights {weights.version}"
        sha256 = announced_sha256(weights, PLACE, what)
        folder = self._root / sha256
        try:
            size = (folder / FILE).stat().st_size
            actual = sha256_of(folder / FILE) if size == weights.size_bytes else ""
        except FileNotFoundError:
            raise WeightsError(
                f"{what} are not in {self._root}: they were pruned (weights.keep is {self._keep}), or the store "
                "is not the trainer's: take a newer version, point to the trainer's folder, or share none "
                '(weights.store = "jetstream")'
            ) from None
        except OSError as error:
            raise WeightsError(f"{what} cannot be read from {folder}: {reason(error)}") from error
        if size != weights.size_bytes:
            raise WeightsError(
                f"{folder / FILE} has {size} bytes, {what} were announced with {weights.size_bytes}{MEND}"
            )
        if actual != sha256:
            raise WeightsError(f"{folder / FILE} is damaged: its sha256 is {actual}, not that of {what}{MEND}")
        return folder

    def _versions(self) -> dict[int, str]:
        folder = self._root / "versions"
        names = sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())
        return {version: (folder / str(version)).read_text() for version in names}

    def _prune(self) -> list[int]:
        versions = self._versions()
        if not self._keep or not versions:
            return []
        kept = kept_versions(versions, self._keep, self._stays)
        removed = [version for version in versions if version not in kept]
        for version in removed:
            (self._root / "versions" / str(version)).unlink(missing_ok=True)
        for folder in self._root.iterdir():
            if is_sha256(folder.name) and folder.name not in kept.values():
                shutil.rmtree(folder, ignore_errors=True)
        return removed
