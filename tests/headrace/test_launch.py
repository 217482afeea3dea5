"""Several ranks as processes: small Python programs in the trainer's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from consumers.trainer import TrainerSettings
from headrace.launch import launch, own_rank
from schemas import ConfigError
from tests.consumers.trainer import lockstep_rank
from tests.waiting import eventually

PYTHON = (sys.executable, "-S", "-c")
ROOT = Path(__file__).parents[2]
BEGINS = """
import os, pathlib, signal, sys, time
rank, folder = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
(folder / f"{rank}.new").write_text(str(os.getpid()))
(folder / f"{rank}.new").rename(folder / f"{rank}.pid")
while len(list(folder.glob("*.pid"))) < int(os.environ["WORLD_SIZE"]): time.sleep(0.01)
"""
WAITS = BEGINS + "signal.pause()"
LAUNCHES = "import logging, sys; from headrace.launch import launch; logging.basicConfig(); " + (
    "sys.exit(launch([sys.argv[1], sys.argv[2]], 2, (sys.executable, '-S', '-c')))"
)


LAUNCHES_LOCKSTEP = "import sys; from headrace.launch import launch; " + (
    "sys.exit(launch(['60'], 2, (sys.executable, sys.argv[1])))"
)


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.glob("*.pid"))]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has launched two ranks, which wait for signals."""
    command = [sys.executable, "-c", LAUNCHES, WAITS, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def both(folder: Path) -> list[int]:
    async def begun() -> bool:
        return len(pids(folder)) == 2

    await eventually(begun)
    return pids(folder)


async def all_gone(numbers: list[int]) -> None:
    async def gone() -> bool:
        return not any(map(alive, numbers))

    await eventually(gone)


def test_every_rank_knows_its_place(tmp_path: Path) -> None:
    code = BEGINS + (
        "import json; names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'];"
        "(folder / f'{rank}.json').write_text(json.dumps([os.environ[name] for name in names]))"
    )
    assert launch([code, str(tmp_path)], 3, PYTHON) == 0
    places = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [place[:4] for place in places] == [[str(rank), str(rank), "3", "127.0.0.1"] for rank in range(3)]
    assert len({place[4] for place in places}) == 1


def test_the_exit_code_is_that_of_rank_0(tmp_path: Path) -> None:
    assert launch([f"{BEGINS}sys.exit(3 if rank == 0 else 0)", str(tmp_path)], 2, PYTHON) == 3


def test_a_rank_that_has_left_in_order_does_not_end_rank_0(tmp_path: Path) -> None:
    code = f"{BEGINS}\nif rank: (folder / 'left').touch(); sys.exit(0)\n" + (
        "while not (folder / 'left').exists(): time.sleep(0.01)\ntime.sleep(0.2); sys.exit(7)"
    )
    assert launch([code, str(tmp_path)], 2, PYTHON) == 7


def test_ranks_that_do_not_end_after_rank_0_are_killed(tmp_path: Path) -> None:
    code = f"{BEGINS}signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif rank: signal.pause()"
    assert launch([code, str(tmp_path)], 2, PYTHON) == 0
    assert not any(map(alive, pids(tmp_path)))


async def test_a_killed_rank_is_named_and_ends_all(launcher: subprocess.Popen[str], tmp_path: Path) -> None:
    _, follower = await both(tmp_path)
    os.kill(follower, signal.SIGKILL)
    _, told = launcher.communicate()
    assert f"rank 1 (process {follower}) was ended by SIGKILL: all ranks end" in told
    assert launcher.returncode == 128 + signal.SIGKILL
    assert not any(map(alive, pids(tmp_path)))


async def test_a_stopped_rank_ends_with_the_others(launcher: subprocess.Popen[str], tmp_path: Path) -> None:
    leader, follower = await both(tmp_path)
    os.kill(leader, signal.SIGSTOP)
    os.kill(follower, signal.SIGKILL)
    launcher.communicate()
    assert not any(map(alive, pids(tmp_path)))


async def test_sigterm_reaches_every_rank(launcher: subprocess.Popen[str], tmp_path: Path) -> None:
    await both(tmp_path)
    launcher.terminate()
    launcher.communicate()
    assert launcher.returncode == 128 + signal.SIGTERM
    assert not any(map(alive, pids(tmp_path)))


async def test_ranks_die_with_the_one_who_started_them(launcher: subprocess.Popen[str], tmp_path: Path) -> None:
    numbers = await both(tmp_path)
    launcher.kill()
    await all_gone(numbers)


@pytest.mark.timeout(200)
def test_ranks_listen_on_loopback_alone() -> None:
    command = [sys.executable, "-c", LAUNCHES_LOCKSTEP, lockstep_rank.__file__]
    names = os.environ.keys() - {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    with subprocess.Popen(
        command, cwd=ROOT, env={name: os.environ[name] for name in names} | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        both_ready = process.stdout.read(len("ready\n") * 2)
        assert both_ready.count("ready") == 2
        ranks = psutil.Process(process.pid).children()
        listening = [
            [each.laddr.ip for each in rank.net_connections() if each.status == psutil.CONN_LISTEN] for rank in ranks
        ]
        process.communicate("\n")
    assert process.returncode == 0
    assert [len(addresses) for addresses in listening] == [2, 1]  # gloo's of both, and rank 0's store
    assert {address for addresses in listening for address in addresses} == {"127.0.0.1"}


def test_interfaces_that_the_user_has_set_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    code = f"{BEGINS}(folder / f'{{rank}}.txt').write_text(' '.join(os.environ[name] for name in {names}))"
    assert launch([code, str(tmp_path)], 2, PYTHON) == 0
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["eth7 lo"] * 2


def test_as_many_ranks_as_the_settings_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainerSettings(data_parallel=2, tensor_parallel=2)
    monkeypatch.delenv("RANK", raising=False)
    assert own_rank(settings) is None
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert own_rank(settings) == 3
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"3 ranks were started \(WORLD_SIZE\), and trainer.data_parallel 2 \* "):
        own_rank(settings)
