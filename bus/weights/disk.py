"""Files on this machine: written aside and moved to their name when they are whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from schemas import WeightsError


class NewFile:
    """A file that takes its name when it has the size and sha256 that it should have. All methods block.

    ``what`` names it in messages.
    """

    def __init__(self, path: Path, what: str, *, size_bytes: int, sha256: str) -> None:
        """Raises WeightsError where the disk refuses."""
        self._path, self._what = path, what
        self._size_bytes, self._sha256 = size_bytes, sha256
        self._written = 0
        self._hash = hashlib.sha256()
        self._aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._aside.open("wb", buffering=0)
        except OSError as error:
            raise self._refused(error) from error

    def take(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Append. Raises WeightsError where it becomes larger than it should be, or the disk refuses."""
        for piece in pieces:
            self._written += len(piece)
            if self._written > self._size_bytes:
                raise WeightsError(f"{self._what} should have {self._size_bytes} bytes and has more: they are not used")
            self._hash.update(piece)
            try:
                write_all(self._file.fileno(), memoryview(piece))
            except OSError as error:
                raise self._refused(error) from error

    def finish(self) -> None:
        """Give it its name. Raises WeightsError where it is not what it should be."""
        self._file.close()
        if self._written != self._size_bytes:
            raise WeightsError(f"{self._what} should have {self._size_bytes} bytes and has {self._written}{MEND}")
        if self._hash.hexdigest() != self._sha256:
            raise WeightsError(
                f"{self._what} is damaged: its sha256 is {self._hash.hexdigest()}, not {self._sha256}{MEND}"
            )
        try:
            self._aside.replace(self._path)
        except OSError as error:
            raise self._refused(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What was not finished is gone."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._aside.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> WeightsError:
        return WeightsError(f"{self._what} cannot be written to {self._path}: {reason(error)}")


MEND = ": it was damaged after it was written; take a newer version, or let the trainer put it again"


def sha256_of_bytes(view: memoryview) -> str:
    """In hexadecimal."""
    return hashlib.sha256(view).hexdigest()


def sha256_of(path: Path) -> str:
    """In hexadecimal, of a file that is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, without reading it whole. Raises OSError."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages, memoryview(pages) as view:
            yield view


def write_durably(path: Path, view: memoryview) -> None:
    """Write a file that is whole and on the disk when this returns. Raises OSError."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with aside.open("wb", buffering=0) as file:
            write_all(file.fileno(), view)
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_all(descriptor: int, view: memoryview) -> None:
    written = 0
    while written < view.nbytes:  # One call writes at most 2 GiB on Linux.
        written += os.write(descriptor, view[written:])


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def for_lack_of_space(error: WeightsError) -> bool:
    """Whether it came of a full disk, where trying again later can help."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)


def reason(error: OSError) -> str:
    """Why a disk refuses, with the remedy."""
    if error.errno == errno.ENOSPC:
        return "no disk space left: free some, or lower weights.keep"
    return f"{error.strerror}: check the folder"
