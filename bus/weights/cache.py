"""Weights that were read from NATS, or made of deltas, in a folder of this machine where an engine finds them.

    ROOT/<sha256>/model.safetensors

A process has a cache of its own, so nobody removes what another is about to load.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from schemas import WeightsError

from .disk import NewFile, reason, sha256_of
from .store import FILE, is_sha256

KEPT = 2
"""Those in use, and those that are about to be."""


class Cache:
    """All methods block."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def is_empty(self) -> bool:
        return not self._root.is_dir() or not any(is_sha256(path.name) for path in self._root.iterdir())

    def holds(self, sha256: str, size_bytes: int) -> bool:
        """Whether it has these weights, by name and size alone."""
        file = self._root / sha256 / FILE
        return file.is_file() and file.stat().st_size == size_bytes

    def folder(self, sha256: str) -> Path:
        """Where these weights lie, if they do."""
        return self._root / sha256

    def drop(self, sha256: str) -> None:
        """Have these weights no longer."""
        shutil.rmtree(self._root / sha256, ignore_errors=True)

    def find(self, sha256: str, size_bytes: int) -> Path | None:
        """The folder that has these weights, verified once more. Raises WeightsError where the disk cannot be read."""
        folder = self._root / sha256
        try:
            if (folder / FILE).stat().st_size != size_bytes or sha256_of(folder / FILE) != sha256:
                return None
            os.utime(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WeightsError(f"cached weights in {folder} cannot be read: {reason(error)}") from error
        return folder

    def new(self, sha256: str, size_bytes: int, what: str) -> NewFile:
        """A file for these weights. Raises WeightsError where the disk refuses."""
        return NewFile(self._root / sha256 / FILE, what, size_bytes=size_bytes, sha256=sha256)

    def trim(self, sha256: str) -> Path:
        """The folder of these weights, which are there; all but the newest others are removed."""
        folder = self._root / sha256
        os.utime(folder)
        others = [path for path in self._root.iterdir() if is_sha256(path.name) and path != folder]
        for path in sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True)[KEPT - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
        return folder
