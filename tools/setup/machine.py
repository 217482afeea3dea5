"""What can be seen to be wrong with a machine before anything is downloaded."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)
FREE_GB = {"cpu": 8, "gpu": 20}
"""Disk space that must be free: measured 3.5 GB for the CPU, with downloads and a first run on top; the GPU's is an
estimate."""


class SetupFailed(Exception):
    """What is wrong, and the remedy, in a line or few."""


def check_python(version: tuple[int, int], others: Iterable[str]) -> None:
    """Raise SetupFailed for a Python that the engines have no builds for. ``others``: those found on this machine."""
    if OLDEST <= version <= NEWEST:
        return
    found = next(iter(others), None)
    remedy = f"make setup PYTHON={found}" if found else "install one and say make setup PYTHON=python3.12, for example"
    raise SetupFailed(
        f"this is Python {version[0]}.{version[1]}, and Headrace needs {OLDEST[0]}.{OLDEST[1]} to "
        f"{NEWEST[0]}.{NEWEST[1]}: {remedy}"
    )


def check_disk(free_bytes: int, extra: str, folder: Path) -> None:
    """Raise SetupFailed for too little room."""
    needed = FREE_GB[extra]
    if free_bytes < needed * 1e9:
        raise SetupFailed(
            f"{folder} has {free_bytes / 1e9:.1f} GB free, and set-up needs {needed} GB: make room, "
            "or clone to a larger disk"
        )


def check_libnuma(load: Callable[[str], object] = ctypes.CDLL) -> None:
    """Raise SetupFailed without libnuma: vLLM's CPU engine would die far from the cause."""
    try:
        load("libnuma.so.1")
    except OSError:
        raise SetupFailed(
            "the shared library libnuma.so.1 is missing, and vLLM's CPU engine needs it: "
            "apt-get install libnuma1 (Debian, Ubuntu) or dnf install numactl-libs (Fedora, RHEL)"
        ) from None


def check_venv_module() -> None:
    """Raise SetupFailed where a distribution ships Python without it."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise SetupFailed(
            f"this Python {version} cannot make virtual environments: apt-get install python{version}-venv"
        ) from None


def check_machine(extra: str, root: Path, *, fresh: bool) -> None:
    """Raise SetupFailed for anything that can be seen to be wrong before the first download.

    ``fresh``: the Python that runs this is the one that .venv will have.
    """
    if not sys.platform.startswith("linux"):
        raise SetupFailed(f"this is {sys.platform}, and the engines have builds for Linux: use Linux or its container")
    if fresh:
        check_python(sys.version_info[:2], other_pythons())
        check_venv_module()
    if extra == "cpu":
        check_libnuma()
    # What an earlier set-up took is there already, or goes before the new one comes.
    check_disk(shutil.disk_usage(root).free + folder_bytes(root / ".venv"), extra, root)


def other_pythons() -> Iterator[str]:
    """Commands on the path that name a Python in range and do start (a version manager's shim may not)."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if shutil.which(name) and subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            yield name


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below ``folder``, which may change meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).lstat().st_size
            except OSError:
                continue
    return total
