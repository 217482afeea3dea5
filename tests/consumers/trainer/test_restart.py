"""A trainer that starts again: from damaged checkpoints, lost weights, another model, a log with holes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus import Bus
from consumers.trainer import load_newest_checkpoint
from schemas import DEAD, LEDGER, ROLLOUTS, TASKS, Dead, LogGap, RunError, Step, StreamSpec, Term, Weights
from tests.consumers.trainer.digest_learner import DigestLearner
from tests.consumers.trainer.test_checkpoint_folder import DAMAGES, flip
from tests.consumers.trainer.trained_run import (
    TrainedRun,
    delete_message,
    events,
    publish_groups,
    publish_steps,
    publish_tasks,
    sha256_of,
)


@pytest.fixture
async def bus(connect_as: Any) -> Bus:
    """Publishes rollouts."""
    generator: Bus = await connect_as("generator")
    return generator


async def begun(trained: TrainedRun, bus: Bus, *, steps: int) -> None:
    """A run that ended after ``steps`` of two groups each, with rollouts for one more."""
    await publish_steps(bus, steps + 1)
    trained.finish(steps=steps)


async def digests(bus: Bus) -> list[str]:
    """Of the weights after each step; each begins with those that the step before it ended with."""
    steps = await events(bus, Step)
    for before, after in itertools.pairwise(steps):
        assert after.weights_before == before.weights_after
    return [step.weights_after for step in steps]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_newest_checkpoint_is_set_aside_and_made_anew_from_the_one_before(
    damage: Callable[[Path], None], trained: TrainedRun, bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    await begun(trained, bus, steps=4)
    whole = sha256_of(trained.checkpoints / "step-4" / "parameters")
    damage(trained.checkpoints / "step-4")
    trained.finish(steps=5)
    assert "step-4 is damaged" in caplog.text
    assert "it is set aside as step-4.damaged" in caplog.text
    assert trained.files() == ["step-0", "step-4", "step-4.damaged", "step-5"]
    assert sha256_of(trained.checkpoints / "step-4" / "parameters") == whole
    assert (await events(bus, Step))[-1].checkpoint == 4
    assert [weights.sha256 for weights in await events(bus, Weights)][1:] == await digests(bus)


async def test_an_older_damaged_checkpoint_does_not_hold_the_log(trained: TrainedRun, bus: Bus) -> None:
    trained.purges = True
    await begun(trained, bus, steps=4)
    steps = await events(bus, Step)
    assert (await bus.state(ROLLOUTS)).first_sequence == steps[1].low_water + 1
    flip(trained.checkpoints / "step-2")
    trained.finish(steps=4)
    assert trained.files() == ["step-0", "step-2.damaged", "step-4"]
    assert (await bus.state(ROLLOUTS)).first_sequence == steps[3].low_water + 1


async def test_all_checkpoints_damaged_the_run_is_trained_again_from_the_model(trained: TrainedRun, bus: Bus) -> None:
    await begun(trained, bus, steps=4)
    before = await digests(bus)
    for step in (0, 2, 4):
        flip(trained.checkpoints / f"step-{step}")
    trained.finish(steps=5)
    assert (await digests(bus))[:4] == before
    assert trained.files() == ["step-0", "step-2.damaged", "step-4", "step-4.damaged", "step-5"]
    assert DigestLearner(trained.checkpoints).checkpoint_faults() == {}


async def test_no_checkpoint_left_that_the_log_reaches_is_said_in_numbers(trained: TrainedRun, bus: Bus) -> None:
    trained.purges = True
    await begun(trained, bus, steps=4)
    shutil.rmtree(trained.checkpoints)
    with pytest.raises(LogGap, match=r"ROLLOUTS begins at sequence 9, and going on from checkpoint 0 needs it from 1"):
        trained.finish(steps=5)


async def test_a_checkpoint_that_is_newer_than_the_ledger_is_set_aside(trained: TrainedRun, bus: Bus) -> None:
    """As after a power loss, which the log's last messages may not survive."""
    await begun(trained, bus, steps=2)
    learner = DigestLearner(trained.checkpoints, start=b"of steps that were never committed")
    learner.save_checkpoint(4)
    trained.finish(steps=3)
    assert trained.files() == ["step-0", "step-2", "step-3", "step-4.damaged"]


async def test_another_model_directory_is_refused_and_nothing_is_written(trained: TrainedRun, bus: Bus) -> None:
    await begun(trained, bus, steps=2)
    before, files = await events(bus), trained.files()
    trained.start = b"other weights"
    with pytest.raises(
        RunError, match=r"the model directory holds weights .*, and run '.*' started from .*model\.path"
    ):
        trained.finish(steps=3)
    assert await events(bus) == before
    assert trained.files() == files


async def test_the_last_checkpoint_that_a_crash_prevented_is_made_at_the_next_start(
    trained: TrainedRun, bus: Bus
) -> None:
    await begun(trained, bus, steps=3)
    shutil.rmtree(trained.checkpoints / "step-3")
    trained.finish(steps=3)
    assert trained.files() == ["step-0", "step-2", "step-3"]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"damaged")])
async def test_announced_weights_that_are_lost_or_damaged_are_put_again(
    damage: Callable[[Path], None], trained: TrainedRun, bus: Bus
) -> None:
    await begun(trained, bus, steps=3)
    announced = (await events(bus, Weights))[-1]
    damage(trained.weights / announced.sha256 / "model.safetensors")
    trained.finish(steps=4)
    assert sha256_of(trained.weights / announced.sha256 / "model.safetensors") == announced.sha256
    assert [weights.version for weights in await events(bus, Weights)] == [0, 1, 2, 3, 4]


async def test_announced_weights_that_are_lost_and_cannot_be_made_again_are_named(
    trained: TrainedRun, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where training again gives other bits."""
    await begun(trained, bus, steps=3)
    announced = (await events(bus, Weights))[-1]
    take_step = DigestLearner.step

    def other_bits(self: DigestLearner, *arguments: Any) -> dict[str, float]:
        metrics = take_step(self, *arguments)
        self.parameters += b"."
        return metrics

    monkeypatch.setattr(DigestLearner, "step", other_bits)
    shutil.rmtree(trained.checkpoints / "step-3")
    (trained.weights / announced.sha256 / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"weights 3 are not in .*Training again gave other weights .*copy them back"):
        trained.finish(steps=4)


async def test_where_training_again_gives_other_bits_the_announced_weights_count(
    trained: TrainedRun, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(trained, bus, steps=4)
    take_step = DigestLearner.step

    def other_bits(self: DigestLearner, *arguments: Any) -> dict[str, float]:
        metrics = take_step(self, *arguments)
        self.parameters += b"."
        return metrics

    flip(trained.checkpoints / "step-2")
    flip(trained.checkpoints / "step-4")
    monkeypatch.setattr(DigestLearner, "step", other_bits)
    trained.finish(steps=5)
    await digests(bus)
    assert trained.files() == ["step-0", "step-2.damaged", "step-4", "step-4.damaged", "step-5"]
    # Checkpoint 2 is none of what was trained again; checkpoint 4 holds the weights that were announced.
    announced = (await events(bus, Weights))[4]
    assert sha256_of(trained.checkpoints / "step-4" / "parameters") == announced.sha256


async def test_a_rollout_of_a_group_that_was_never_issued_goes_to_dead_and_the_mark_passes_it(
    trained: TrainedRun, bus: Bus, connect_as: Any
) -> None:
    await publish_tasks(await connect_as("dispatcher"), 4)
    await publish_groups(bus, [4000, 0, 1, 2, 3])
    trained.finish(steps=2)
    steps = await events(bus, Step)
    assert [[group.group for group in step.groups] for step in steps] == [[0, 1], [2, 3]]
    assert steps[-1].low_water == 10
    dead = [logged.event async for logged in (await connect_as("reader")).read(DEAD)]
    assert all(isinstance(letter, Dead) and "which was never issued" in letter.reason for letter in dead)
    assert [letter.sequence for letter in dead if isinstance(letter, Dead)] == [1, 2]


@pytest.mark.parametrize(
    ("spec", "sequence", "words"),
    [
        (LEDGER, 3, "LEDGER has no messages 3"),
        (LEDGER, 1, "LEDGER has no messages 1"),
        (TASKS, 2, "TASKS has no messages 2, and no purge explains it"),
        (ROLLOUTS, 10, "ROLLOUTS has no messages 10, and no purge explains it"),
    ],
)
async def test_a_hole_in_the_log_is_a_fault_and_named(
    spec: StreamSpec, sequence: int, words: str, trained: TrainedRun, bus: Bus, connect_as: Any
) -> None:
    await publish_tasks(await connect_as("dispatcher"), 6)
    await begun(trained, bus, steps=2)
    await delete_message(await connect_as("admin"), spec, sequence)
    before = (await bus.state(LEDGER)).last_sequence
    with pytest.raises(LogGap, match=words):
        trained.finish(steps=3)
    assert (await bus.state(LEDGER)).last_sequence - before == (0 if spec is LEDGER else 1), "a term at most"


async def test_a_hole_that_comes_while_it_trains_is_a_fault_too(trained: TrainedRun, bus: Bus, connect_as: Any) -> None:
    admin, loop = await connect_as("admin"), asyncio.get_running_loop()
    await begun(trained, bus, steps=1)
    trainer = trained.trainer(steps=2)
    open_inbox = trainer._open_inbox

    def open_after_loss(start: int) -> Any:
        """The log was looked at, and not read yet."""
        asyncio.run_coroutine_threadsafe(delete_message(admin, ROLLOUTS, 7), loop).result()
        return open_inbox(start)

    trainer._open_inbox = open_after_loss
    with pytest.raises(LogGap, match="ROLLOUTS has no messages 7"):
        await asyncio.to_thread(trainer.run, lambda version: None)


async def test_a_hole_below_what_is_needed_is_reported_and_borne(
    trained: TrainedRun, bus: Bus, connect_as: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await begun(trained, bus, steps=2)
    await delete_message(await connect_as("admin"), ROLLOUTS, 2)
    with caplog.at_level(logging.ERROR):
        trained.finish(steps=3)
    assert "ROLLOUTS has no messages 2, and no purge explains it: what goes on needs those from 9 on" in caplog.text
    assert len(await events(bus, Step)) == 3


async def test_what_retention_purged_is_no_hole(
    trained: TrainedRun, bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    trained.purges = True
    await begun(trained, bus, steps=4)
    assert (await bus.state(ROLLOUTS)).first_sequence == 9
    trained.finish(steps=5)
    assert len(await events(bus, Term)) == 2
    assert "no purge explains it" not in caplog.text


def test_replay_reads_past_a_damaged_checkpoint_and_leaves_it_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = DigestLearner(tmp_path)
    for step in (0, 2, 4):
        learner.save_checkpoint(step)
    flip(tmp_path / "step-4")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert load_newest_checkpoint(DigestLearner(tmp_path), 5) == 2
    assert "step-4 is damaged" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == before
