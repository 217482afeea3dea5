"""Checkpoints as folders: complete under their name, or not there; damaged ones set aside.

    FOLDER/step-12/          what the learner wrote, and manifest.json: size and sha256 of each file
    FOLDER/step-8.damaged/   set aside: for people to look at, and no checkpoint to anyone else
    FOLDER/.aside/NAME/      what one process writes or removes; NAME.lock is locked for as long as it does

A checkpoint is written aside, hashed, synced and then renamed. Before one is used, every byte is compared with the
manifest. Several processes may be at it: a trainer that was thought dead, and replays, which only read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from schemas import HeadraceError, RunError

MANIFEST = "manifest.json"
DAMAGED = ".damaged"
KEEP_DAMAGED = 2
"""Damaged checkpoints that stay for people to look at: the newest, and of the others those of the greatest steps."""
_NAME = re.compile(r"step-(\d+)")
BESIDE_BYTES = 1024 * 1024
"""Of a checkpoint, beside its tensors: the manifest, and what formats add."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class CheckpointUnusable(RunError):
    """A checkpoint is not of this model and optimizer, or it is missing or damaged."""


class CheckpointDamaged(CheckpointUnusable):
    """A checkpoint is missing, or its files are not what was written. An older one may still serve."""


class CheckpointNotWritten(HeadraceError):
    """The disk refuses a checkpoint."""


class _File(msgspec.Struct, frozen=True):
    size_bytes: int
    sha256: str


_Stamps = dict[str, tuple[int, int, int]]
"""Name of a file to its inode, size in bytes, and time of the last change in ns."""


class CheckpointFolder:
    """The checkpoints of one run. One process writes and removes, any number read."""

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        """``keep``: newest checkpoints that ``prune`` leaves, besides checkpoint 0."""
        self.path = path.resolve()
        self._aside = self.path / ".aside"
        self._keep = keep
        self._verified: dict[int, _Stamps] = {}

    def aside(self, name: str) -> Path:
        """Where the process that chose ``name`` writes its checkpoints, each as ``step-N``, within ``writing``."""
        return self._aside / name

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        return [step for step in self._named() if (self._of(step) / MANIFEST).exists()]

    def verify(self, step: int) -> Path:
        """The folder of checkpoint ``step``, every byte of it as it was written; read again only where it was touched.

        Raises CheckpointDamaged where it is missing or is not.
        """
        folder = self._of(step).resolve()  # Errors name the place itself where this is a link.
        stamps = _stamps(folder)
        if not stamps or self._verified.get(step) != stamps:
            _verify(folder, have=self.steps())
            self._verified[step] = stamps
        return folder

    def faults(self) -> dict[int, CheckpointDamaged]:
        """What is wrong with each checkpoint that is not as it was written, half-written folders included."""
        faults = {}
        for step in self._named():
            try:
                self.verify(step)
            except CheckpointDamaged as error:
                faults[step] = error
        return faults

    def set_aside(self, step: int) -> Path:
        """Rename checkpoint ``step``, so that it is none any more; returns its new place.

        Of those that were set aside, all but KEEP_DAMAGED are deleted.
        """
        folder = self._of(step)
        damaged = folder.with_name(folder.name + DAMAGED)
        _remove(damaged)
        folder.rename(damaged)
        _sync_folder(self.path)
        others = sorted(set(self.path.glob(f"step-*{DAMAGED}")) - {damaged}, key=_step_set_aside)
        for other in others[: 1 - KEEP_DAMAGED]:
            _remove(other)
        return damaged

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """The place ``aside(name)``, empty and ours alone for the length of the block; deleted after it.

        What dead processes left is deleted too, and what live ones write is left alone.
        """
        self._aside.mkdir(parents=True, exist_ok=True)
        with _locked(self._aside / f"{name}.lock"):
            _remove_abandoned(self._aside)
            _remove(self.aside(name))
            self.aside(name).mkdir()
            try:
                yield
            finally:
                _remove(self.aside(name))
        with contextlib.suppress(OSError):  # Another one writes.
            self._aside.rmdir()

    def publish(self, name: str, step: int) -> None:
        """Give what was written to ``aside(name)``/step-N its name, durably; one of that name is replaced."""
        written, final = self.aside(name) / f"step-{step}", self._of(step)
        _write_manifest(written)
        while True:
            try:
                written.rename(final)
                break
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            self._move_away(step, name)
        _sync_folder(self.path)

    def lacks_room(self, error: BaseException, size_bytes: int) -> bool:
        """Whether a checkpoint of that size could not be written for lack of room, which may be made.

        What was half written is gone by then; a library may tell the reason in its own words alone.
        """
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        return shutil.disk_usage(self.path).free < size_bytes + BESIDE_BYTES

    def not_written(self, step: int, reason: str) -> CheckpointNotWritten:
        """What to raise where checkpoint ``step`` cannot be written."""
        return CheckpointNotWritten(
            f"checkpoint {step} cannot be written to {self.path} ({reason}): look at the disk, and start again: the "
            "run goes on from the checkpoint before"
        )

    def prune(self, name: str) -> None:
        """Remove all but checkpoint 0 and the newest."""
        for step in [step for step in self.steps() if step > 0][: -self._keep]:
            self._move_away(step, name)

    def _move_away(self, step: int, name: str) -> None:
        # Renamed before it is deleted: a folder that is half deleted must not look complete.
        gone = self.aside(name) / f"gone-{step}"
        with contextlib.suppress(FileNotFoundError):  # Another process was faster.
            self._of(step).rename(gone)
        _remove(gone)

    def _of(self, step: int) -> Path:
        return self.path / f"step-{step}"

    def _named(self) -> list[int]:
        """Steps that have a folder, whatever is in it, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self.path.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)


def checkpoint_steps(path: Path) -> list[int]:
    """Steps with a complete checkpoint in a folder, ascending; nothing is loaded for that."""
    return CheckpointFolder(path).steps()


def _step_set_aside(path: Path) -> int:
    match = _NAME.match(path.name)
    return int(match[1]) if match else -1


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock file that tells others that its owner lives. It has its name only once it is locked."""
    unnamed = path.with_suffix(".new")
    while True:
        with unnamed.open("wb") as file:
            with contextlib.suppress(OSError):  # A file system without locks: nobody deletes what others write there.
                fcntl.flock(file, fcntl.LOCK_EX)
            try:
                unnamed.rename(path)
            except FileNotFoundError:  # Before it was locked, another process took it for a dead one's.
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _remove_abandoned(aside: Path) -> None:
    """Delete what processes that have died left, and whatever has no lock."""
    locks = [path for path in aside.iterdir() if path.suffix in (".lock", ".new")]
    live = {path.stem for path in locks if not _is_abandoned(path)}
    for path in aside.iterdir():
        if path.stem not in live:
            _remove(path)


def _is_abandoned(lock: Path) -> bool:
    try:
        with lock.open("rb+") as file:
            return _can_lock(file)
    except OSError:
        return False


def _can_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_manifest(folder: Path) -> None:
    files = {path.name: _describe(path) for path in sorted(folder.iterdir())}
    with (folder / MANIFEST).open("wb") as file:
        file.write(msgspec.json.encode(files))
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _describe(path: Path) -> _File:
    with path.open("rb") as file:
        return _File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _sync_folder(folder: Path) -> None:
    """Make renames within ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _stamps(folder: Path) -> _Stamps:
    """Empty where the folder is missing or going."""
    try:
        found = {path.name: path.stat() for path in folder.iterdir()}
    except OSError:
        return {}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def _verify(folder: Path, *, have: list[int]) -> None:
    def damaged(name: str, why: object) -> CheckpointDamaged:
        return CheckpointDamaged(f"checkpoint {folder} is damaged ({name}: {why}): an older one serves")

    if not folder.exists():
        raise CheckpointDamaged(f"there is no checkpoint {folder}: complete ones are of steps {have}")
    try:
        files = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, _File])
    except OSError as error:
        raise damaged(MANIFEST, error.strerror) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise damaged(MANIFEST, error) from None
    for name, expected in files.items():
        try:
            found = _describe(folder / name)
        except OSError as error:
            raise damaged(name, error.strerror) from None
        except ValueError as error:  # A name that no file can have.
            raise damaged(MANIFEST, error) from None
        if found != expected:
            raise damaged(name, "it is not what was written")
