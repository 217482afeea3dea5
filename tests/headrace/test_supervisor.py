"""The supervisor with real processes: small Python programs in the roles' places."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from headrace.settings import SupervisorSettings
from headrace.supervisor import RoleCommand, Supervisor
from schemas import RunError
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PYTHON = (sys.executable, "-S", "-c")
WAITS = "import signal; print('up', flush=True); signal.pause()"
IGNORES_TERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"


def command(name: str, code: str, *, essential: bool = False, **environment: str) -> RoleCommand:
    return RoleCommand(name=name, arguments=[code], environment=environment, essential=essential)


def supervisor(logs: Path, *commands: RoleCommand, **settings: float) -> Supervisor:
    values = SupervisorSettings(**{"stop_grace_s": 20.0, **settings})  # type: ignore[arg-type]
    return Supervisor(commands, logs, values, program=PYTHON)


def said(logs: Path, name: str) -> list[str]:
    path = logs / f"{name}.log"
    return path.read_text().splitlines() if path.exists() else []


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_said(logs: Path, name: str, lines: int = 1) -> list[str]:
    async def enough() -> bool:
        return len(said(logs, name)) >= lines

    await eventually(enough)
    return said(logs, name)


async def gone(*pids: int) -> None:
    """Return when none of them runs. Raises TimeoutError where one is left over, and ends it."""

    async def none_left() -> bool:
        return not any(map(alive, pids))

    try:
        await eventually(none_left)
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


async def test_run_ends_with_its_essential_role_and_takes_the_others_along(tmp_path: Path) -> None:
    logs = tmp_path
    waiting = f"import os; print(os.getpid()); {WAITS}"
    # The essential one is done only when the other has begun.
    trainer = f"import time\nwhile 'up' not in open({str(logs / 'generator.log')!r}).read(): time.sleep(0.01)"
    both = supervisor(
        logs, command("generator", waiting), command("trainer", trainer, essential=True), quick_deaths=100
    )
    await both.run(asyncio.Event())
    pid = int(said(logs, "generator")[0])
    assert not alive(pid)


async def test_run_goes_on_until_every_essential_role_has_ended(tmp_path: Path) -> None:
    """The trainer is done first, and a generator still evaluates what it made."""
    late = (
        "import pathlib, time\n"
        f"while 'trained' not in pathlib.Path({str(tmp_path / 'trainer.log')!r}).read_text(): time.sleep(0.02)\n"
        "time.sleep(0.3); print('evaluated', flush=True)"
    )
    await supervisor(
        tmp_path,
        command("trainer", "print('trained', flush=True)", essential=True),
        command("generator-0", late, essential=True),
        command("generator-1", WAITS),
    ).run(asyncio.Event())
    assert said(tmp_path, "generator-0") == ["evaluated"]


async def test_role_that_ends_well_and_is_not_essential_ends_nothing(tmp_path: Path) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(
        supervisor(tmp_path, command("sink", "print('done')"), command("trainer", WAITS, essential=True)).run(stop)
    )
    await until_said(tmp_path, "sink")
    await until_said(tmp_path, "trainer")
    assert not task.done()
    stop.set()
    await task
    assert said(tmp_path, "sink") == ["done"]


async def test_role_that_dies_quickly_again_and_again_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; print('no such model: make one'); sys.exit(7)"
    restarts: list[tuple[str, int]] = []
    watched = supervisor(tmp_path, command("trainer", code, essential=True), quick_deaths=2)
    watched.on_restart = lambda name, code, delay_s: restarts.append((name, code))
    with pytest.raises(RunError) as raised:
        await watched.run(asyncio.Event())
    message = str(raised.value)
    assert "trainer ended with exit code 7 and is given up: 2 quick deaths in a row" in message
    assert message.endswith("no such model: make one")
    assert restarts == [("trainer", 7)]
    assert len(said(tmp_path, "trainer")) == 2


async def test_a_role_that_finds_no_server_is_tried_for_as_long_as_that_lasts(tmp_path: Path) -> None:
    code = f"import sys; from pathlib import Path; tries = Path({str(tmp_path / 'tries')!r}); " + (
        "n = len(tries.read_text()) if tries.exists() else 0; tries.write_text('x' * (n + 1)); "
        "sys.exit(4 if n < 3 else 0)"
    )
    watched = supervisor(tmp_path, command("trainer", code, essential=True), quick_deaths=1)
    await watched.run(asyncio.Event())
    assert (tmp_path / "tries").read_text() == "xxxx"


async def test_giving_up_one_role_ends_the_others(tmp_path: Path) -> None:
    waiting = f"import os; print(os.getpid()); {WAITS}"
    dying = f"import time\nwhile 'up' not in open({str(tmp_path / 'generator.log')!r}).read(): time.sleep(0.01)\n1/0"
    with pytest.raises(RunError, match="ZeroDivisionError"):
        await supervisor(tmp_path, command("generator", waiting), command("t", dying), quick_deaths=1).run(
            asyncio.Event()
        )
    assert not alive(int(said(tmp_path, "generator")[0]))


async def test_role_that_dies_long_after_its_start_is_not_given_up(tmp_path: Path) -> None:
    stop = asyncio.Event()
    dying = command("generator", "raise SystemExit('dead')")
    # Every life is longer than quick_death_s, and one quick death would be too many.
    watched = supervisor(tmp_path, dying, quick_deaths=1, quick_death_s=1e-9)
    task = asyncio.create_task(watched.run(stop))
    await until_said(tmp_path, "generator", 2)
    stop.set()
    await task


async def test_killed_role_is_started_again(tmp_path: Path) -> None:
    stop = asyncio.Event()
    code = f"import os; print(os.getpid()); {WAITS}"
    restarts: list[int] = []
    watched = supervisor(tmp_path, command("generator", code))
    watched.on_restart = lambda name, code, delay_s: restarts.append(code)
    task = asyncio.create_task(watched.run(stop))
    first = int((await until_said(tmp_path, "generator", 2))[0])
    os.kill(first, signal.SIGKILL)
    second = int((await until_said(tmp_path, "generator", 4))[2])
    stop.set()
    await task
    assert restarts == [-signal.SIGKILL]
    assert first != second
    assert not alive(second)


async def test_fenced_role_is_not_started_again(tmp_path: Path) -> None:
    code = "import sys; print('another writer owns the ledger'); sys.exit(3)"
    with pytest.raises(RunError, match="starting it again would not help"):
        await supervisor(tmp_path, command("trainer", code, essential=True), quick_deaths=50).run(asyncio.Event())
    assert said(tmp_path, "trainer") == ["another writer owns the ledger"]


async def test_role_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stubborn = command("stubborn", f"import os; print(os.getpid()); {IGNORES_TERM}")
    polite_code = (
        "import signal, sys\ndef end(*_):\n    print('goodbye', flush=True)\n    sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, end)\n{WAITS}"
    )
    task = asyncio.create_task(
        supervisor(tmp_path, stubborn, command("polite", polite_code), stop_grace_s=5.0).run(stop)
    )
    pid = int((await until_said(tmp_path, "stubborn", 2))[0])
    await until_said(tmp_path, "polite")
    stop.set()
    await task
    assert not alive(pid)
    assert said(tmp_path, "polite") == ["up", "goodbye"]


async def test_role_that_a_signal_has_stopped_ends_in_order(tmp_path: Path) -> None:
    stop = asyncio.Event()
    code = (
        "import os, signal, sys\ndef end(*_):\n    print('goodbye', flush=True)\n    sys.exit(0)\n"
        f"print(os.getpid()); signal.signal(signal.SIGTERM, end)\n{WAITS}"
    )
    task = asyncio.create_task(supervisor(tmp_path, command("trainer", code)).run(stop))
    pid = int((await until_said(tmp_path, "trainer", 2))[0])
    os.kill(pid, signal.SIGSTOP)
    stop.set()
    await task
    assert said(tmp_path, "trainer")[2:] == ["goodbye"]


async def test_what_a_role_started_ends_with_it(tmp_path: Path) -> None:
    engine = [*PYTHON, WAITS]
    code = f"import subprocess; print(subprocess.Popen({engine!r}).pid, flush=True); import os; os.kill(os.getpid(), 9)"
    with pytest.raises(RunError, match="signal 9"):
        await supervisor(tmp_path, command("generator", code), quick_deaths=1).run(asyncio.Event())
    await gone(int(next(line for line in said(tmp_path, "generator") if line.isdecimal())))


async def test_role_gets_its_environment_and_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_US", "ours")
    code = "import os; print(os.environ['FROM_US'], os.environ['ITS_OWN'])"
    await supervisor(tmp_path, command("trainer", code, essential=True, ITS_OWN="its")).run(asyncio.Event())
    assert said(tmp_path, "trainer") == ["ours its"]


async def test_logs_of_an_earlier_start_are_kept(tmp_path: Path) -> None:
    for word in ("first", "second"):
        await supervisor(tmp_path, command("trainer", f"print({word!r})", essential=True)).run(asyncio.Event())
    assert said(tmp_path, "trainer") == ["first", "second"]


SUPERVISES = """
import asyncio, sys
from pathlib import Path
from tests.headrace.test_supervisor import IGNORES_TERM, command, supervisor
code = "import os; print(os.getpid(), flush=True); " + IGNORES_TERM
commands = [command("trainer", code, essential=True), command("generator", code)]
asyncio.run(supervisor(Path(sys.argv[1]), *commands).run(asyncio.Event()))
"""


async def test_sigkill_of_the_supervising_process_leaves_no_child(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", SUPERVISES, str(tmp_path), cwd=ROOT)
    try:
        pids = [int((await until_said(tmp_path, name, 2))[0]) for name in ("trainer", "generator")]
        assert all(map(alive, pids))
    finally:
        parent.kill()
        await parent.wait()
    await gone(*pids)
