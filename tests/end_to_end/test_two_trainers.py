"""Two `headrace train` on one run: one goes on, the other ends and says why; the ledger has no gap and no fork."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from bus import BusRole, EmbeddedServer
from headrace.folder import RunFolder
from headrace.roles import FINAL
from headrace.server import environment_for
from tests.end_to_end.conftest import CONFIG, ROOT, STAND_IN
from tests.end_to_end.logbook import Logbook, check, read_logbook

pytestmark = pytest.mark.timeout(400)


class Roles:
    """A server, and one process for each role that is started."""

    def __init__(self, parent: Path, model: Path) -> None:
        self.folder = RunFolder(parent / "whole")
        self._config = parent / "config.toml"
        self._config.write_text(CONFIG.format(model=model, engine=STAND_IN, generators=1))
        self.server = EmbeddedServer.start(self.folder.nats, run="whole")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, role: BusRole, *words: str) -> subprocess.Popen[bytes]:
        """``headrace`` with ``words``, then the configuration; ``name`` is that of its log."""
        command = [*words, str(self._config), "--set", "run.steps=1000"]
        with self._log(name).open("wb") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "headrace", *command, "--dir", str(self.folder.path.parent)],
                cwd=ROOT, stdout=output, stderr=output, env=os.environ | environment_for(self.server.address(role)),
            )  # fmt: skip
        return self.processes[name]

    def _log(self, name: str) -> Path:
        return self.folder.path / f"{name}.log"

    def said(self, name: str) -> str:
        return self._log(name).read_text()

    def until(self, name: str, words: str, count: int = 1) -> None:
        """Wait until a process has said ``words`` so many times. Raises AssertionError if it ends before."""
        while self.said(name).count(words) < count:
            assert self.processes[name].poll() is None, self.said(name)
            psutil.wait_procs([psutil.Process(self.processes[name].pid)], timeout=0.1)

    def ended(self, name: str) -> int:
        return self.processes[name].wait(timeout=200)

    def stop(self, name: str) -> int:
        self.processes[name].send_signal(signal.SIGTERM)
        return self.ended(name)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.server.stop()


class Contest(msgspec.Struct, kw_only=True):
    """What became of trainers that were started while another one was at work."""

    pids: dict[str, int]
    codes: dict[str, int]
    said: dict[str, str]
    book: Logbook


@pytest.fixture(scope="module")
def contest(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Contest:
    roles = Roles(tmp_path_factory.mktemp("contest"), model)
    try:
        assert roles.start("topology", "topology", "topology", "apply").wait(timeout=60) == 0, roles.said("topology")
        roles.start("dispatcher", "dispatcher", "dispatch")
        roles.start("generator", "generator", "generate")
        roles.start("first", "trainer", "train")
        roles.until("first", "staleness", 3)
        roles.start("second", "trainer", "train")
        codes = {"first": roles.ended("first")}
        roles.until("second", "staleness", 2)
        roles.start("spare", "trainer", "train", "--set", "trainer.instance=spare")
        codes["spare"] = roles.ended("spare")
        codes["second"] = roles.stop("second")
        roles.start("changed", "trainer", "train", "--set", "trainer.lr=1e-3")
        codes["changed"] = roles.ended("changed")
        roles.start("accepted", "trainer", "train", "--set", "trainer.lr=1e-3", "--accept-changes")
        roles.until("accepted", "staleness", 1)
        for name in ("accepted", "generator", "dispatcher"):
            codes[name] = roles.stop(name)
    finally:
        roles.kill()
    return Contest(
        pids={name: process.pid for name, process in roles.processes.items()},
        codes=codes,
        said={name: roles.said(name) for name in roles.processes},
        book=read_logbook(roles.folder.path),
    )


def test_the_ledger_has_no_gap_and_no_fork(contest: Contest) -> None:
    check(contest.book)
    assert [term.pid for term in contest.book.terms] == [contest.pids[name] for name in ("first", "second", "accepted")]


def test_the_first_trainer_ends_naming_the_step_and_the_other_process(contest: Contest) -> None:
    assert contest.codes["first"] == FINAL
    fenced = contest.said["first"].splitlines()[-1]
    found = re.search(
        r"ERROR .* (?:step|weights|group \d+ could not be closed for step) (\d+)"
        rf"(?: could not be \w+)?: trainer 'trainer' \(process {contest.pids['second']} on .*\) "
        r"has taken over this run after step (\d+)\.",
        fenced,
    )
    assert found is not None, fenced
    assert contest.book.terms[1].committed == int(found[2])
    assert "Traceback" not in contest.said["first"]


def test_the_second_one_goes_on_with_the_step_that_the_first_could_not_commit(contest: Contest) -> None:
    taken_at = contest.book.terms[1].committed
    assert f"step {taken_at} is committed, checkpoint" in contest.said["second"]
    assert f" step {taken_at + 1}: reward" in contest.said["second"]
    assert f" step {taken_at + 1}: reward" not in contest.said["first"]


def test_a_trainer_of_another_name_is_refused_while_one_is_alive(contest: Contest) -> None:
    assert contest.codes["spare"] == FINAL
    words = rf"trainer 'trainer' \(process {contest.pids['second']} on .*\) was alive \d+ s ago: stop it first"
    assert re.search(words, contest.said["spare"]), contest.said["spare"]
    assert {term.instance for term in contest.book.terms} == {"trainer"}


def test_another_configuration_is_refused_until_it_is_accepted(contest: Contest) -> None:
    assert contest.codes["changed"] == FINAL
    assert "trainer.lr: 0.0005 -> 0.001" in contest.said["changed"]
    assert "go on with --accept-changes" in contest.said["changed"]
    digests = [step.config_digest for step in contest.book.steps]
    taken_at = contest.book.terms[2].committed
    assert len(set(digests[:taken_at])) == len(set(digests[taken_at:])) == 1
    assert digests[0] != digests[-1]
    assert contest.book.config.trainer.lr == 1e-3
