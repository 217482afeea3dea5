"""The weights store: a folder in which each file lies under the sha256 of its bytes.

    ROOT/<sha256>/model.safetensors     what an engine loads
    ROOT/versions/<version>             the sha256 that the version has

A file is written aside, made durable, and only then moved to its name: what has a name is whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path

import msgspec

from schemas import Weights, WeightsError

FILE = "model.safetensors"
SCHEME = "file:"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Durable weights, as their event announces them."""

    sha256: str
    location: str
    size_bytes: int


class WeightsStore:
    """See the module. All methods block: call them in a thread. One process writes, any number fetch."""

    def __init__(self, root: Path, keep: int) -> None:
        """``keep``: how many of the newest versions ``prune`` leaves; 0 keeps all."""
        self._root = root
        self._keep = keep

    def put(self, payload: bytes | bytearray | memoryview, *, version: int, sha256: str | None = None) -> Stored:
        """Make ``payload`` durable as ``version``, without copying it. Returns what to announce.

        ``sha256``: that of ``payload``, where the caller has computed it already.

        The file is written even if it is there: one that was damaged since is mended.
        Raises WeightsError where the disk does not take it.
        """
        view = memoryview(payload).cast("B")
        sha256 = sha256 or hashlib.sha256(view).hexdigest()
        try:
            folder = self._root / sha256
            folder.mkdir(parents=True, exist_ok=True)
            _write_durably(folder / FILE, view)
            versions = self._root / "versions"
            versions.mkdir(exist_ok=True)
            _write_durably(versions / str(version), memoryview(sha256.encode()))
            _sync_folder(self._root)
        except OSError as error:
            raise WeightsError(
                f"weights {version} ({view.nbytes} bytes) cannot be written to {self._root}: {_why(error)}"
            ) from error
        return Stored(sha256=sha256, location=f"{SCHEME}{sha256}", size_bytes=view.nbytes)

    def fetch(self, weights: Weights) -> Path:
        """The folder with ``model.safetensors``, its size and sha256 verified, read in pieces.

        Raises WeightsError where the weights are not here, pruned, damaged, or not what was announced.
        """
        what = f"weights {weights.version}"
        sha256 = weights.location.removeprefix(SCHEME)
        if not weights.location.startswith(SCHEME) or not _SHA256.fullmatch(sha256):
            raise WeightsError(f"{what}: location {weights.location!r} is not of this store: expected file:<sha256>")
        if sha256 != weights.sha256:
            raise WeightsError(f"{what}: the location names {sha256}, the event {weights.sha256}: do not use them")
        folder = self._root / sha256
        try:
            with (folder / FILE).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                actual = hashlib.file_digest(file, "sha256").hexdigest() if size == weights.size_bytes else ""
        except FileNotFoundError:
            raise WeightsError(
                f"{what} are not in {self._root}: they were pruned (weights.keep is {self._keep}), or the store "
                "is not the trainer's: take a newer version, or point to the trainer's folder"
            ) from None
        except OSError as error:
            raise WeightsError(f"{what} cannot be read from {folder}: {_why(error)}") from error
        if size != weights.size_bytes:
            raise WeightsError(
                f"{folder / FILE} has {size} bytes, {what} were announced with {weights.size_bytes}{_MEND}"
            )
        if actual != sha256:
            raise WeightsError(f"{folder / FILE} is damaged: its sha256 is {actual}, not that of {what}{_MEND}")
        return folder

    def versions(self) -> dict[int, str]:
        """Version to sha256 of all that were put and not pruned, oldest first."""
        folder = self._root / "versions"
        names = sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())
        return {version: (folder / str(version)).read_text() for version in names}

    def prune(self) -> list[int]:
        """Remove all but the newest ``keep`` versions, and files that no version has. Returns the removed versions.

        Never a version that is kept, nor the file it shares with a removed one. An engine that has the file open
        goes on reading it.
        """
        versions = self.versions()
        if not self._keep or not versions:
            return []
        kept = dict(list(versions.items())[-self._keep :])
        removed = [version for version in versions if version not in kept]
        for version in removed:
            (self._root / "versions" / str(version)).unlink(missing_ok=True)
        for folder in self._root.iterdir():
            if _SHA256.fullmatch(folder.name) and folder.name not in kept.values():
                shutil.rmtree(folder, ignore_errors=True)
        return removed


_MEND = ": it was damaged after it was written; take a newer version, or let the trainer put it again"


def _write_durably(path: Path, view: memoryview) -> None:
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with aside.open("wb", buffering=0) as file:
            written = 0
            while written < view.nbytes:  # One call writes at most 2 GiB on Linux.
                written += file.write(view[written:])
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "no disk space left: free some, or lower weights.keep"
    return f"{error.strerror}: check the folder"
