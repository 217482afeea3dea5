"""The interpreter: what a program gets, how its end is told, and that no process stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from environments.sandbox import Interpreter, Isolation, Limits, Ran, interpreter
from environments.sandbox.walls import NOBODY
from schemas import EnvironmentFault
from tests.waiting import eventually

LIMITS = Limits(cpu_s=1, wall_s=30.0, output_chars=1000)


@pytest.fixture(scope="module", params=["namespaces", "filter"])
def python(request: pytest.FixtureRequest) -> Interpreter:
    isolation: Isolation = request.param
    return Interpreter(LIMITS, isolation)


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(1 + 1)", "2\n"),
        ("x = 20\nx + 1", "21\n"),
        ("None", ""),
        ("", ""),
        ("print('é €')", "é €\n"),
        ("import math, statistics, fractions\nfractions.Fraction(6, 4)", "Fraction(3, 2)\n"),
        ("from collections import Counter\nCounter('aab')['a']", "2\n"),
        ("def f(n): return 1 if n < 2 else n * f(n - 1)\nprint(f(5))", "120\n"),
        ("import random\nrandom.seed(1)\nrandom.random() < 1", "True\n"),
        ("import time\ntime.sleep(0.01)\ntime.time() > 0", "True\n"),
        ("if __name__ == '__main__': print('main')", "main\n"),
        ("try: open('x')\nexcept OSError: print('no files')", "no files\n"),
        ("import sys\nsys.exit(0)", ""),
    ],
)
async def test_program_runs_and_its_last_line_is_shown(program: str, output: str, python: Interpreter) -> None:
    assert await python.run(program) == Ran(output=output)


@pytest.mark.parametrize(
    ("program", "output"),
    [
        (
            "x = 1\nprint('a')\nx / 0",
            'a\nTraceback (most recent call last):\n  File "<program>", line 3, in <module>\n',
        ),
        ("def f(:\n", '  File "<program>", line 1\n    def f(:\n'),
        ("import numpy", "ModuleNotFoundError: no module 'numpy' here; there are ast, bisect, calendar"),
    ],
)
async def test_error_of_the_program_is_its_output(program: str, output: str, python: Interpreter) -> None:
    ran = await python.run(program)
    assert ran.code == 1
    assert output in ran.output
    assert "inside.py" not in ran.output
    assert not ran.problem


async def test_exit_code_is_told(python: Interpreter) -> None:
    assert (await python.run("import sys\nsys.exit(3)")).code == 3


async def test_output_before_a_limit_is_kept(python: Interpreter) -> None:
    ran = await python.run("print('so far')\nwhile True: pass")
    assert ran.output == "so far\n"
    assert "1 s of processor time" in ran.problem


async def test_characters_are_counted_not_bytes(python: Interpreter) -> None:
    assert not (await python.run("print('€' * 999)")).failed
    assert "more than 1,000 characters" in (await python.run("print('€' * 1000)")).problem


async def test_programs_run_side_by_side_and_each_gets_its_own_output(python: Interpreter) -> None:
    ran = await asyncio.gather(*(python.run(f"print({i})") for i in range(6)))
    assert [each.output for each in ran] == [f"{i}\n" for i in range(6)]


async def test_cancelled_program_is_ended_with_all_its_processes(python: Interpreter) -> None:
    before = _children()

    async def started() -> bool:
        return len(_children() - before) == 1

    running = asyncio.create_task(python.run("import time\ntime.sleep(60)"))
    await eventually(started)
    (process,) = _children() - before
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not _group(process)


async def test_no_process_is_left_after_any_end(python: Interpreter) -> None:
    before = _children()
    for program in ("1", "1 / 0", "while True: print(1)", "while True: pass"):
        await python.run(program)
    assert _children() == before


async def test_sandbox_that_dies_is_a_fault_not_a_result(python: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_COMMAND", (*interpreter._COMMAND[:-1], "/nothing/inside.py"))
    with pytest.raises(EnvironmentFault, match="sandbox failed"):
        await python.run("1")


def test_auto_takes_the_strongest() -> None:
    assert Interpreter(LIMITS).isolation in ("namespaces", "filter")


def test_isolation_that_is_not_to_be_had_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _sandbox_with(tmp_path, "_MACHINES = {", "_MACHINES = {} and {")
    monkeypatch.setattr(interpreter, "_COMMAND", (*interpreter._COMMAND[:-1], str(broken)))
    for isolation in ("auto", "namespaces", "filter"):
        with pytest.raises(EnvironmentFault, match=r"the filter of system calls knows .*: set isolation to"):
            Interpreter(LIMITS, isolation)  # type: ignore[arg-type]


def test_without_namespaces_auto_falls_back_to_the_filter_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _sandbox_with(tmp_path, '_call("unshare"', '_call("setns"')
    monkeypatch.setattr(interpreter, "_COMMAND", (*interpreter._COMMAND[:-1], str(broken)))
    python = Interpreter(LIMITS)
    assert python.isolation == "filter"
    assert "setns: " in python.why_not_more
    with pytest.raises(EnvironmentFault, match="namespaces of its own are not to be had"):
        Interpreter(LIMITS, "namespaces")


async def test_processor_time_ends_a_loop_long_before_its_wall_clock_limit() -> None:
    began = time.monotonic()
    ran = await Interpreter(Limits(cpu_s=1, wall_s=60.0)).run("while True: pass")
    assert "1 s of processor time" in ran.problem
    assert time.monotonic() - began < 40


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("import os\nos.listdir('/'), os.getpid(), os.getuid()", "([], 1, 65534)\n"),
        ("import os\nopen('/x', 'w')", "Read-only file system"),
        ("import os\nos.path.exists('/proc/1/environ')", "False\n"),
        ("import os, signal\nos.kill({pid}, signal.SIGKILL)", "ProcessLookupError"),
        ("import os\nwhile True: os.fork()", "BlockingIOError"),
        ("import os\nos.setuid(0)", "PermissionError"),
        ("import ctypes\nctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, 0)", "-1\n"),
        ("import ctypes\nc = ctypes.CDLL(None)\n"
         "c.connect(c.socket(2, 1, 0), b'\\2\\0\\x10\\x92\\x7f\\0\\0\\1' + bytes(8), 16)",
         "-1\n"),
    ],
)  # fmt: skip
async def test_namespaces_hold_where_the_filter_has_a_hole(
    program: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_filter = _sandbox_with(
        tmp_path, "_REFUSE, _KILL = 0x7FFF0000, 0x00050001,", "_REFUSE, _KILL = 0x7FFF0000, 0x7FFF0000,"
    )
    monkeypatch.setattr(interpreter, "_COMMAND", (*interpreter._COMMAND[:-1], str(open_filter)))
    ran = await Interpreter(LIMITS, "namespaces").run(program.replace("{pid}", str(os.getpid())))
    assert output in ran.output


@pytest.mark.skipif(os.getuid() != 0, reason="the other tests run without privileges already")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a Python that another user can run")
def test_user_without_privileges_gets_the_same_walls() -> None:
    asked = {
        "program": "import os\nprint(os.getuid())\nos.listdir('/')",
        "isolation": "auto", "cpu_s": 2, "wall_s": 30, "memory_bytes": 1 << 28,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        _sandbox_with(Path(folder), "_REFUSE", "_REFUSE")
        Path(folder).chmod(0o755)
        command = ["/usr/bin/python3", "-I", "-S", f"{folder}/inside.py"]
        ended = subprocess.run(
            command, input=json.dumps(asked).encode(), capture_output=True, env={}, cwd="/", check=True,
            user=NOBODY - 1, group=NOBODY - 1, extra_groups=[],
        )  # fmt: skip
    report = json.loads(ended.stderr)
    may_make_namespaces = int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0
    assert report["isolation"] == "namespaces" or not may_make_namespaces, report
    assert ended.stdout.startswith(b"%d\n" % (NOBODY if report["isolation"] == "namespaces" else NOBODY - 1))
    assert b"PermissionError: [Errno 1] Operation not permitted: '/'" in ended.stdout


def _sandbox_with(folder: Path, old: str, new: str) -> Path:
    """A copy of the sandbox's process with other walls."""
    source = Path(interpreter.__file__).parent
    walls = (source / "walls.py").read_text()
    assert old in walls
    (folder / "walls.py").write_text(walls.replace(old, new))
    (folder / "inside.py").write_text((source / "inside.py").read_text())
    return folder / "inside.py"


def _children() -> set[int]:
    return {
        int(child) for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
    }


def _group(leader: int) -> list[int]:
    """Processes of a group, by /proc/*/stat: the fifth field."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == leader:
            found.append(int(stat.parent.name))
    return [pid for pid in found if pid != os.getpid()]
