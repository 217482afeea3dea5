"""`python3 -m tools.setup.image cpu|gpu`: `.venv` for a container image, with what the project needs but not itself.

It takes the same requirements, constraints and steps as `make setup`, without the tools for development. What no role
reads when it runs is removed, in the same layer of the image that it came with.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from .installation import ROOT, make_venv
from .machine import FREE_GB, SetupFailed, check_libnuma, folder_bytes
from .packages import Pip, install
from .progress import Progress

NEVER_READ = ("numba/tests", "pandas/tests", "pyarrow/include", "pyarrow/tests", "torch/test")
"""Tests and headers, below the packages' folder."""
NEVER_READ_ON_A_CPU = ("torch/include", "triton/backends/*/bin", "triton/backends/*/lib")
"""What compiling for a device at run time needs. The CPU's image has no compiler, and triton only has to import."""


def requirements(pyproject: Path, extra: str) -> list[str]:
    """What the project needs to run with ``extra``: all environments, and what imports a model of a package."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras[extra], *extras["environments"], *extras["smollm2"]]


def unread(packages: Path, extra: str) -> Iterator[Path]:
    """The folders below ``packages`` that an image for ``extra`` can do without."""
    for pattern in (*NEVER_READ, *(NEVER_READ_ON_A_CPU if extra == "cpu" else ())):
        yield from packages.glob(pattern)


def build(root: Path, extra: str, progress: Progress) -> None:
    """Make ``root/.venv``. Raises SetupFailed."""
    venv = root / ".venv"
    if extra == "cpu":
        check_libnuma()
    venv.mkdir()
    make_venv(venv, progress, fresh=True)
    install(Pip(root, progress), extra, progress, requirements(root / "pyproject.toml", extra))
    (venv / "setup.log").unlink()
    (packages,) = venv.glob("lib/python*/site-packages")
    for folder in unread(packages, extra):
        progress.say(f"removing {folder.relative_to(packages)}, {folder_bytes(folder) / 1e6:.0f} MB")
        shutil.rmtree(folder)
    progress.say(f"the packages take {folder_bytes(packages) / 1e9:.2f} GB")


def main(arguments: Sequence[str]) -> int:
    """The command. Returns its exit code."""
    if len(arguments) != 1 or arguments[0] not in FREE_GB:
        sys.exit(f"usage: python3 -m tools.setup.image {'|'.join(sorted(FREE_GB))}")
    progress = Progress(sys.stdout)
    try:
        build(ROOT, arguments[0], progress)
    except SetupFailed as failure:
        progress.say(f"the image cannot be built: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
