"""Whether a run may go on, as ``headrace train`` asks before it loads anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus import Bus, EmbeddedServer, connect
from headrace.config import FILE_NAME, RunConfig, digest, store, stored
from headrace.continuation import check_unchanged_since_step, finished
from headrace.folder import RunFolder
from headrace.roles import FINAL
from headrace.server import environment_for
from schemas import RunError, Step
from tests import examples
from tests.consumers.trainer.digest_learner import DigestLearner
from tests.headrace import recorded

ROOT = Path(__file__).parents[2]


class Recorded:
    """A run ``demo`` of 4 steps whose log a test fills."""

    def __init__(self, folder: RunFolder, server: EmbeddedServer, bus: Bus) -> None:
        self.folder, self.server, self.bus = folder, server, bus
        self.config = stored(folder.path)

    async def commit(self, *numbers: int, announced: int | None = None) -> None:
        """Steps, each with its weights, of which the last may be missing."""
        log: list[Any] = []
        for number in numbers:
            log.append(self.step(number))
            if announced is None or number <= announced:
                log.append(examples.weights(run="demo", version=number))
        await recorded.record(self.server, "demo", log)

    def step(self, number: int) -> Step:
        return examples.step(run="demo", number=number, config_digest=digest(self.config))

    def train(self, *words: str) -> subprocess.CompletedProcess[str]:
        config, place = self.folder.path / FILE_NAME, self.folder.path.parent
        command = [sys.executable, "-m", "headrace", "train", str(config), "--dir", str(place), *words]
        environment = os.environ | environment_for(self.server.address("trainer"))
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
async def run_of_4(tmp_path: Path) -> AsyncIterator[Recorded]:
    folder = recorded.prepare(tmp_path / "runs", "demo", steps=4)
    server = EmbeddedServer.start(folder.nats)
    await recorded.record(server, "demo", [])
    bus = await connect(server.address("trainer"), run="demo", role="trainer", id="test")
    yield Recorded(folder, server, bus)
    await bus.close()
    server.stop()


def changed(config: RunConfig, **trainer: Any) -> RunConfig:
    return msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, **trainer))


async def test_a_trainer_with_another_configuration_says_what_changed_and_is_not_started_again(
    run_of_4: Recorded,
) -> None:
    await run_of_4.commit(1, 2)
    told = run_of_4.train("--set", "trainer.lr=0.5", "--set", "policy.stale=mask")
    assert told.returncode == FINAL
    assert 'policy.stale: "drop" -> "mask"; trainer.lr: 1e-06 -> 0.5' in told.stderr
    assert "go on with --accept-changes" in told.stderr
    assert "Traceback" not in told.stderr
    assert stored(run_of_4.folder.path) == run_of_4.config


async def test_with_accepted_changes_it_goes_on(run_of_4: Recorded) -> None:
    await run_of_4.commit(1, 2)
    told = run_of_4.train("--set", "trainer.lr=0.5", "--accept-changes")
    assert "another configuration" not in told.stderr
    assert "copy the model again" in told.stderr, "it went on to the model, which is none"


async def test_without_the_run_s_folder_the_last_step_s_digest_counts(run_of_4: Recorded, tmp_path: Path) -> None:
    await run_of_4.commit(1, 2)
    elsewhere = RunFolder(tmp_path / "elsewhere" / "demo")
    await check_unchanged_since_step(run_of_4.bus, run_of_4.config, elsewhere)
    other = changed(run_of_4.config, lr=0.5)
    with pytest.raises(RunError, match=r"step 2 was trained with one of digest .*, this one's is .*--accept-changes"):
        await check_unchanged_since_step(run_of_4.bus, other, elsewhere)
    store(other, run_of_4.folder.path)
    with pytest.raises(RunError, match="step 2 was trained with one of digest"):
        await check_unchanged_since_step(run_of_4.bus, other, run_of_4.folder)


async def test_what_does_not_decide_what_is_trained_may_change(run_of_4: Recorded) -> None:
    await run_of_4.commit(1)
    other = changed(run_of_4.config, threads=2, checkpoint_every=3, instance="spare")
    await check_unchanged_since_step(run_of_4.bus, other, run_of_4.folder)


async def test_before_the_first_step_the_trainer_s_own_settings_may_change_and_no_others(run_of_4: Recorded) -> None:
    other = changed(run_of_4.config, lr=0.5)
    await check_unchanged_since_step(run_of_4.bus, other, run_of_4.folder)
    other = msgspec.structs.replace(other, policy=msgspec.structs.replace(other.policy, temperature=0.5))
    with pytest.raises(RunError, match=r"another configuration \(policy.temperature: 1.0 -> 0.5\)"):
        await check_unchanged_since_step(run_of_4.bus, other, run_of_4.folder)


async def test_a_trainer_of_a_finished_run_says_how_to_extend_it_and_ends_well(run_of_4: Recorded) -> None:
    await run_of_4.commit(1, 2, 3, 4)
    run_of_4.folder.checkpoints.mkdir()
    DigestLearner(run_of_4.folder.checkpoints).save_checkpoint(4)
    told = run_of_4.train()
    assert told.returncode == 0
    assert "run 'demo' is finished: step 4 of 4 is committed. Extend it with --set run.steps=8" in told.stderr
    assert run_of_4.train("--set", "run.steps=2").returncode == 0


@pytest.mark.parametrize(
    ("announced", "checkpoint", "done"), [(4, 4, True), (3, 4, False), (4, 3, False), (3, None, False)]
)
async def test_a_run_is_finished_with_its_last_weights_and_its_last_checkpoint(
    announced: int, checkpoint: int | None, done: bool, run_of_4: Recorded
) -> None:
    await run_of_4.commit(1, 2, 3, 4, announced=announced)
    run_of_4.folder.checkpoints.mkdir()
    if checkpoint is not None:
        DigestLearner(run_of_4.folder.checkpoints).save_checkpoint(checkpoint)
    words = await finished(run_of_4.bus, run_of_4.config, run_of_4.folder.checkpoints)
    assert (words is not None) == done


async def test_a_run_with_steps_left_is_not_finished(run_of_4: Recorded) -> None:
    assert await finished(run_of_4.bus, run_of_4.config, run_of_4.folder.checkpoints) is None
    await run_of_4.commit(1, 2, 3)
    assert await finished(run_of_4.bus, run_of_4.config, run_of_4.folder.checkpoints) is None
