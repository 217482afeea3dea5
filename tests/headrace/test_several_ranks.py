"""A trainer of two ranks by the real command, on the rollouts of a recorded run: that needs no generator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from bus import EmbeddedServer
from headrace.folder import RunFolder
from headrace.server import environment_for
from schemas import Step
from tests.end_to_end.conftest import ROOT
from tests.end_to_end.logbook import Logbook, check, read_logbook
from tests.headrace.conftest import STEPS
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.timeout(400)
PYTHON = (sys.executable,)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class Replaying(msgspec.Struct, frozen=True):
    """``headrace replay events`` of the run ``whole`` into a run ``dev``, which waits for its trainer."""

    folder: RunFolder
    process: subprocess.Popen[str]
    trainers: list[subprocess.Popen[str]]

    def train(self, *sets: str, by: tuple[str, ...] = PYTHON) -> subprocess.Popen[str]:
        """Start a trainer for it."""
        addresses = EmbeddedServer.find(self.folder.nats)
        assert addresses is not None
        words = ["train", str(self.folder.path / "config.json"), "--dir", str(self.folder.path.parent)]
        trainer = subprocess.Popen(
            [*by, "-m", "headrace", *words, *(f"--set={each}" for each in sets)],
            cwd=ROOT, env=os.environ | environment_for(addresses["trainer"]), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.trainers.append(trainer)
        return trainer

    def end(self, recorded: Logbook) -> Logbook:
        """The log of the new run, once a trainer has made all that its rollouts give. Its tasks are the old run's."""
        _, told = self.process.communicate()
        assert self.process.returncode == 0, told
        book = msgspec.structs.replace(read_logbook(self.folder.path), tasks=recorded.tasks)
        check(book)
        return book


@pytest.fixture
def replaying(whole: RunFolder, tmp_path: Path) -> Iterator[Replaying]:
    shutil.copytree(whole.path, tmp_path / whole.name)
    words = ["replay", "events", whole.name, "--into", "dev", "--speed", "max", "--json", "--dir", str(tmp_path)]
    process = subprocess.Popen(
        [*PYTHON, "-m", "headrace", *words], cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    trainers: list[subprocess.Popen[str]] = []
    try:
        assert process.stderr is not None
        assert any(line.startswith("  headrace train ") for line in process.stderr), "it ended"
        yield Replaying(RunFolder(tmp_path / "dev"), process, trainers)
    finally:
        for each in (process, *trainers):
            with each:
                each.kill()


def until(trainer: subprocess.Popen[str], words: str) -> None:
    """Wait until a trainer has said ``words``."""
    assert trainer.stderr is not None
    told = []
    for line in trainer.stderr:
        told.append(line)
        if words in line:
            return
    raise AssertionError("".join(told))


def test_two_ranks_of_torchrun_train_as_one_process(replaying: Replaying, whole: RunFolder) -> None:
    trainer = replaying.train("trainer.data_parallel=2", by=TORCHRUN)
    _, told = trainer.communicate()
    assert trainer.returncode == 0, told
    one = read_logbook(whole.path)
    book = replaying.end(one)
    assert [(step.number, step.world_size) for step in book.steps] == [(n, 2) for n in range(1, STEPS + 1)]
    for mine, theirs in zip(book.steps, one.steps, strict=True):
        assert decisions(mine) == decisions(theirs)
        for name in ("loss", "grad_norm", "entropy", "kl", "ratio_mean"):
            assert mine.metrics[name] == pytest.approx(theirs.metrics[name], abs=1e-4, rel=1e-4)
    trained_again_in_one_process(replaying.folder)


def decisions(step: Step) -> object:
    return [(group.group, group.advantages) for group in step.groups], step.packing


def trained_again_in_one_process(run: RunFolder) -> None:
    """``replay train`` puts the parts of a checkpoint together, and says that it was not computed as recorded."""
    command = [*PYTHON, "-m", "headrace", "replay", "train", run.name, "--dir", str(run.path.parent), "--json"]
    done = subprocess.run([*command, "--steps", f"{STEPS}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    step, last = map(json.loads, done.stdout.splitlines())
    assert (last["checkpoint"], last["environment_differs"]) == (STEPS - 2, ["processes: recorded 2, now 1"])
    assert step["loss"] == pytest.approx(step["loss_recorded"], abs=1e-4)


def test_sigterm_ends_all_ranks_in_time_and_the_run_goes_on_in_one(replaying: Replaying, whole: RunFolder) -> None:
    trainer = replaying.train("trainer.data_parallel=2")
    until(trainer, "step 2:")
    family = psutil.Process(trainer.pid).children()
    assert len(family) == 2
    trainer.terminate()
    trainer.wait(timeout=DEADLINE_S)
    assert trainer.returncode == 128 + signal.SIGTERM
    assert psutil.wait_procs(family, timeout=0.1)[1] == []
    alone = replaying.train("trainer.data_parallel=1")
    _, told = alone.communicate()
    assert alone.returncode == 0, told
    book = replaying.end(read_logbook(whole.path))
    assert {step.world_size for step in book.steps} == {1, 2}
