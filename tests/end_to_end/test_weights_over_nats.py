"""A run whose roles share nothing but NATS: weights, model and configuration travel through it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bus import BusRole, EmbeddedServer
from headrace.folder import RunFolder
from headrace.server import environment_for
from schemas import WEIGHTS_BUCKET
from tests.end_to_end.conftest import CONFIG, ROOT, STAND_IN, Start
from tests.end_to_end.logbook import check, read_logbook

pytestmark = pytest.mark.timeout(400)
RUN, STEPS = "whole", 12


class Machines:
    """One server, and processes that each have a working directory and a run folder of their own."""

    def __init__(self, root: Path, model: Path) -> None:
        self._root = root
        self.trainer = RunFolder(root / "trainer" / "runs" / RUN)
        self.server = EmbeddedServer.start(self.trainer.nats, run=RUN)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        shutil.copytree(model, root / "trainer" / "models" / "tiny")
        config = CONFIG.format(model="models/tiny", engine=STAND_IN, generators=1)
        for machine in ("trainer", "dispatcher"):
            (root / machine).mkdir(exist_ok=True)
            (root / machine / "run.toml").write_text(config)

    def start(self, machine: str, role: BusRole, *words: str) -> None:
        folder = self.folder(machine)
        folder.mkdir(exist_ok=True)
        with self.log(machine).open("ab") as log:
            self.processes[machine] = subprocess.Popen(
                [sys.executable, "-m", "headrace", *words],
                cwd=folder,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | environment_for(self.server.address(role)),
            )

    def folder(self, machine: str) -> Path:
        return self._root / machine

    def log(self, machine: str) -> Path:
        return self._root / f"{machine}.log"

    def end(self, machine: str) -> None:
        """Wait for its end. Raises AssertionError where it failed."""
        assert self.processes[machine].wait(timeout=300) == 0, self.log(machine).read_text()

    def until(self, machine: str, words: str) -> None:
        while words not in self.log(machine).read_text():
            assert self.processes[machine].poll() is None, self.log(machine).read_text()
            psutil.wait_procs([psutil.Process(self.processes[machine].pid)], timeout=0.1)


@pytest.fixture
def machines(tmp_path: Path, model: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path, model)
    yield machines
    for process in machines.processes.values():
        process.kill()
        process.wait()
    machines.server.stop()


def test_generators_need_nothing_but_nats_and_a_name(machines: Machines) -> None:
    settings = ["--set", f"run.steps={STEPS}", "--set", "weights.store=jetstream", "--set", "weights.keep=2"]
    machines.start("dispatcher", "topology", "topology", "apply", "run.toml", *settings)
    machines.end("dispatcher")
    for id in ("first", "second"):
        machines.start(id, "generator", "generate", "--run", RUN, "--id", id)
    for id in ("first", "second"):
        machines.until(id, "it is not there yet: the trainer puts it")
    machines.start("trainer", "trainer", "train", "run.toml", *settings)
    for id in ("first", "second"):
        machines.until(id, "weights 0 in use")  # One that comes late may find nothing left to play.
    machines.start("dispatcher", "dispatcher", "dispatch", "run.toml", *settings)
    for machine in ("trainer", "dispatcher", "first", "second"):
        machines.end(machine)
    book = read_logbook(machines.trainer.path)
    check(book)
    assert len(book.steps) == STEPS
    assert {rollout.generator for rollout in book.rollouts.values()} == {"first", "second"}
    bucket = WEIGHTS_BUCKET.bucket(RUN)
    assert [weights.location for weights in book.weights] == [f"jetstream:{bucket}/{w.sha256}" for w in book.weights]
    assert not machines.trainer.weights.exists()
    for id in ("first", "second"):
        machine = machines.folder(id)
        assert [path.name for path in machine.iterdir()] == ["runs"], "nothing was shared"
        taken, given = machine / "runs" / RUN / "model", machines.folder("trainer") / "models" / "tiny"
        assert {path.name: path.read_bytes() for path in taken.iterdir()} == {
            path.name: path.read_bytes() for path in given.iterdir()
        }
        cached = [path.name for path in (machine / "runs" / RUN / "cache" / f"generator-{id}").iterdir()]
        assert len(cached) <= 2
        assert book.weights[-1].sha256 in cached


def test_up_moves_weights_through_nats_also_when_the_trainer_is_killed(start: Start, tmp_path: Path) -> None:
    up = start(tmp_path, generators=2, sets=["run.steps=16", "weights.store=jetstream", "weights.keep=2"])
    up.until("step   1/16")
    (trainer,) = up.running("train")  # Looking for it takes a while, and meanwhile the run goes on.
    up.until("step   3/16")
    trainer.kill()
    assert up.end()["restarts"]["trainer"] == 1
    book = read_logbook(up.folder)
    check(book)
    assert not (up.folder / "weights").exists()
    words = ["model", "export", RUN, str(tmp_path / "out"), "--dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "headrace", *words], cwd=ROOT, check=True)
    exported = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert hashlib.sha256(exported).hexdigest() == book.weights[-1].sha256
