"""Weights in a folder that trainer and generators all see.

    ROOT/<sha256>/model.safetensors     what an engine loads
    ROOT/deltas/<sha256>.<base>         what makes that file of the file with the sha256 ``base``: see delta.py
    ROOT/versions/<version>             the sha256 that the version has

A file is written aside, made durable, and only then moved to its name: what has a name is whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bus.patience import Patience
from bus.threads import in_thread
from schemas import Weights, WeightsError

from .assembly import Assembly
from .cache import Cache
from .delta import Delta
from .disk import MEND, for_lack_of_space, reason, sha256_of, sha256_of_bytes, sync_folder, write_durably
from .store import FILE, Payload, Stays, Stored, announced_sha256, is_sha256, kept_versions, needed, none_stays

PLACE = "file:"


class FileWeights:
    """A WeightsStore in the folder ``root``."""

    def __init__(self, root: Path, keep: int, stays: Stays = none_stays, *, cache: Path | None = None) -> None:
        """``keep``: how many of the newest versions ``prune`` leaves, besides those that ``stays``; 0 keeps all.

        ``cache``: folder for weights that are made of deltas, of this process alone; None for one inside ``root``.
        """
        self._root = root
        self._keep = keep
        self._stays = stays
        self._cache = Cache(cache or root / "cache")

    async def put(self, payload: Payload, *, version: int, sha256: str | None = None) -> Stored:
        """See WeightsStore. The file is written even if it is there, without being copied in memory.

        A full disk is waited out, for ever, with a log line each 10 s.
        """
        view = memoryview(payload).cast("B")
        digest: str = await in_thread(sha256_of_bytes, view) if sha256 is None else sha256
        await self._write(self._root / digest / FILE, view, version, digest)
        return Stored(sha256=digest, location=f"{PLACE}{digest}", size_bytes=view.nbytes)

    async def put_delta(self, delta: Delta, *, version: int) -> Stored:
        """See WeightsStore. A full disk is waited out as ``put`` does."""
        sha256 = delta.header.sha256
        path = self._root / "deltas" / f"{sha256}.{delta.header.base}"
        await self._write(path, memoryview(delta.payload), version, sha256)
        return Stored(sha256=sha256, location=f"{PLACE}{sha256}", size_bytes=delta.header.size_bytes)

    async def fetch(self, weights: Weights) -> Path:
        """See WeightsStore. An engine that has the file open goes on reading it after it was pruned."""
        announced_sha256(weights, PLACE, f"weights {weights.version}")
        return await Assembly(weights, self, self._cache).fetch()

    async def versions(self) -> dict[int, str]:
        """See WeightsStore."""
        return await in_thread(self._versions)

    async def prune(self) -> list[int]:
        """See WeightsStore. A file that a kept version shares with a removed one stays."""
        return await in_thread(self._prune)

    async def _write(self, path: Path, view: memoryview, version: int, sha256: str) -> None:
        patience = Patience(f"writing weights {version}")
        while True:
            try:
                await in_thread(self._write_once, path, view, version, sha256)
            except WeightsError as error:
                if not for_lack_of_space(error):
                    raise
                await patience.pause(str(error))
                continue
            patience.rewarded()
            return

    def _write_once(self, path: Path, view: memoryview, version: int, sha256: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, view)
            versions = self._root / "versions"
            versions.mkdir(exist_ok=True)
            write_durably(versions / str(version), memoryview(sha256.encode()))
            sync_folder(self._root)
        except OSError as error:
            raise WeightsError(
                f"weights {version} ({view.nbytes} bytes) cannot be written to {self._root}: {reason(error)}"
            ) from error

    def at_hand(self, sha256: str, size_bytes: int) -> Path | None:
        """See Shelf."""
        if (self._root / sha256 / FILE).is_file():
            return self._root / sha256
        return self._cache.folder(sha256) if self._cache.holds(sha256, size_bytes) else None

    async def has_whole(self, sha256: str) -> bool:
        """See Shelf. What there is, is at hand."""
        return False

    async def whole(self, sha256: str, size_bytes: int, what: str) -> Path:
        """See Shelf."""
        return await in_thread(self._whole, sha256, size_bytes, what)

    async def delta(self, sha256: str, most_bytes: int, what: str) -> Delta | None:
        """See Shelf."""
        return await in_thread(self._delta, sha256, most_bytes, what)

    def _delta(self, sha256: str, most_bytes: int, what: str) -> Delta | None:
        for path in (self._root / "deltas").glob(f"{sha256}.*"):
            try:
                if path.stat().st_size <= most_bytes:
                    return Delta.read(path.read_bytes(), what)
            except FileNotFoundError:  # It was pruned.
                continue
            except OSError as error:
                raise WeightsError(f"{what} cannot be read from {path}: {reason(error)}") from error
        return None

    def _whole(self, sha256: str, size_bytes: int, what: str) -> Path:
        folder = self._root / sha256
        if not (folder / FILE).is_file() and (made := self._cache.find(sha256, size_bytes)) is not None:
            return made
        try:
            size = (folder / FILE).stat().st_size
            actual = sha256_of(folder / FILE) if size == size_bytes else ""
        except FileNotFoundError:
            raise WeightsError(
                f"{what} are not in {self._root}: they were pruned (weights.keep is {self._keep}), or the store "
                "is not the trainer's: take a newer version, point to the trainer's folder, or share none "
                '(weights.store = "jetstream")'
            ) from None
        except OSError as error:
            raise WeightsError(f"{what} cannot be read from {folder}: {reason(error)}") from error
        if size != size_bytes:
            raise WeightsError(f"{folder / FILE} has {size} bytes, {what} were announced with {size_bytes}{MEND}")
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
        wholes = {path.name for path in self._root.iterdir() if is_sha256(path.name)}
        deltas = {path: path.name.partition(".") for path in (self._root / "deltas").glob("*")}
        there = {sha256 for sha256 in wholes if (self._root / sha256 / FILE).is_file()}
        stay = needed(kept.values(), there, {sha256: base for sha256, _, base in deltas.values()})
        for sha256 in wholes - stay:
            shutil.rmtree(self._root / sha256, ignore_errors=True)
        for path, (sha256, _, _) in deltas.items():
            if sha256 not in stay:
                path.unlink(missing_ok=True)
        return removed
