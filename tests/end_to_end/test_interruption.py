"""What is left of a run when it is interrupted, and how it goes on."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import STAND_IN, Start
from tests.end_to_end.logbook import check, read_logbook
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.timeout(400)
ENGINES = [pytest.param(STAND_IN, id="stand_in"), pytest.param("vllm", id="vllm", marks=pytest.mark.engine)]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=DEADLINE_S)
    for process in alive:
        process.kill()
    assert not alive


@pytest.mark.parametrize("engine", ENGINES)
def test_sigkill_of_up_leaves_no_process_and_the_run_goes_on(start: Start, tmp_path: Path, engine: str) -> None:
    sets = ["run.steps=8"]
    up = start(tmp_path, engine=engine, sets=sets)
    up.until("step   3/8")
    family = up.descendants()
    assert len(family) >= 4, "nats-server, trainer, dispatcher, generator"
    up.process.kill()
    assert_gone(family)
    summary = start(tmp_path, engine=engine, sets=sets).end()
    assert summary["steps"] == 8
    check(read_logbook(up.folder))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_in_time(start: Start, tmp_path: Path, engine: str, number: signal.Signals) -> None:
    up = start(tmp_path, engine=engine)
    up.until("step   2/24")
    family = up.descendants()
    up.process.send_signal(number)
    try:
        up.process.wait(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        logs = [up.progress, *(up.folder / "logs").iterdir()]
        pytest.fail("\n".join([*(str(each) for each in up.descendants()), *(log.read_text() for log in logs)]))
    assert_gone(family)
    assert up.process.returncode == 1
    assert "was stopped after step" in up.progress.read_text()
    assert "the same command goes on with it" in up.progress.read_text()


def test_a_finished_run_says_so_and_can_be_extended(start: Start, tmp_path: Path) -> None:
    start(tmp_path, sets=["run.steps=2"]).end()
    again = start(tmp_path, sets=["run.steps=2"])
    again.process.wait(timeout=30)
    assert again.process.returncode == 1
    assert "Extend it with --set run.steps=4" in again.progress.read_text()
    summary = start(tmp_path, sets=["run.steps=4"]).end()
    assert summary["steps"] == 4


def test_a_changed_configuration_is_refused_and_named(start: Start, tmp_path: Path) -> None:
    start(tmp_path, sets=["run.steps=1"]).end()
    changed = start(tmp_path, sets=["run.steps=2", "trainer.lr=1e-3"])
    changed.process.wait(timeout=30)
    assert changed.process.returncode == 1
    assert "trainer.lr: 0.0005 -> 0.001" in changed.progress.read_text()
