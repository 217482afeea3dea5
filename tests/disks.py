"""A small file system of a test's own, and how it gets full."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1024**2


@contextlib.contextmanager
def mounted(folder: Path, size_mib: int) -> Iterator[Path]:
    """A tmpfs at ``folder``, unmounted at the end; skips the test where mounting is not permitted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("a small disk needs the mount program")
    if done.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room there is on ``disk``."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while shutil.disk_usage(disk).free:  # again where somebody else has removed something meanwhile
            for size in (MIB, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
    return ballast
