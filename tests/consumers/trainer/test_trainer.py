"""The trainer on a real server, with a learner whose weights are a digest of all that it was given."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import threading
from typing import Any

import pytest

from consumers.trainer import recovery
from schemas import DEAD, LEDGER, ROLLOUTS, Closed, Dead, Fenced, Rollout, Span, Step, Term, Weights
from tests.consumers.trainer.trained_run import TrainedRun, events, messages, publish_groups
from tests.examples import closed, rollout


async def test_a_step_is_committed_with_everything_that_it_decided(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    trained.finish(steps=1)
    (step,) = await events(bus, Step)
    assert [group.group for group in step.groups] == [0, 1]
    assert [group.sequences for group in step.groups] == [[1, 2], [3, 4]]
    assert step.low_water == 4
    assert step.metrics["reward_mean"] == 0.5
    assert step.metrics["staleness_max"] == 0
    announced = await events(bus, Weights)
    assert [weights.version for weights in announced] == [0, 1]
    assert [weights.sha256 for weights in announced] == [step.weights_before, step.weights_after]


async def test_the_ledger_tells_the_order_of_a_commit(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    trained.finish(steps=1)
    kinds = [type(event) for event in await events(bus)]
    assert kinds == [Term, Weights, Step, Weights]


async def test_a_group_without_signal_is_closed_before_the_step(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    for member in (0, 1):
        await bus.publish(rollout(run=bus.run, group=0, member=member, reward=1.0, spans=[Span(0, 0, 6)]))
    await publish_groups(bus, [1, 2])
    trained.finish(steps=1)
    closed, step = await events(bus, Closed, Step)
    assert (closed.group, closed.reason, closed.step) == (0, "no_signal", 1)
    assert step.left_out == {"no_signal": 2}
    assert step.metrics["reward_mean"] == pytest.approx(4 / 6)


async def test_a_restarted_trainer_goes_on_where_the_ledger_ends(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1, 2, 3, 4, 5, 6, 7])
    trained.finish(steps=1)
    trained.finish(steps=3)
    steps = await events(bus, Step)
    assert [step.number for step in steps] == [1, 2, 3]
    assert [group.group for step in steps for group in step.groups] == [0, 1, 2, 3, 4, 5]
    for before, after in itertools.pairwise(steps):
        assert after.weights_before == before.weights_after
    assert [weights.version for weights in await events(bus, Weights)] == [0, 1, 2, 3]


async def test_rollouts_of_several_sequences_train_and_train_again_alike(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0], starts=[1])
    await publish_groups(bus, [1, 2, 3])
    await publish_groups(bus, [4, 5], starts=[1])
    trained.finish(steps=3)
    steps = await events(bus, Step)
    positions = [sorted(i for batch in step.packing for row in batch for i in row) for step in steps]
    assert positions == [list(range(n)) for n in (6, 4, 8)]
    assert [step.metrics.get("prefix_breaks", 0) for step in steps] == [2, 0, 4]
    shutil.rmtree(trained.checkpoints)
    trained.finish(steps=3)
    assert trained.files() == ["step-0", "step-2", "step-3"]
    learner = trained.learner()
    learner.load_checkpoint(3)
    assert hashlib.sha256(learner.export()).hexdigest() == steps[-1].weights_after


async def test_weights_that_a_crash_left_unannounced_are_announced_after_it(
    trained: TrainedRun, connect_as: Any
) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    trainer = trained.trainer(steps=1)
    publish_weights = trainer._publication.weights

    class Crash(BaseException):
        pass

    def crash_at_version_1(version: int, exported: Any) -> Weights:
        if version == 1:
            raise Crash
        return publish_weights(version, exported)

    trainer._publication.weights = crash_at_version_1  # type: ignore[method-assign]
    with pytest.raises(Crash):
        trainer.run(lambda version: None)
    trained.threads[-1].stop()
    trained.finish(steps=1)
    (step,) = await events(bus, Step)
    assert [(w.version, w.sha256) for w in await events(bus, Weights)] == [
        (0, step.weights_before),
        (1, step.weights_after),
    ]


async def test_a_second_trainer_takes_over_and_the_first_is_fenced(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    first, committed = trained.trainer(steps=2), threading.Event()
    failure: list[Fenced] = []

    def run_first() -> None:
        try:
            first.run(lambda version: committed.set() if version == 1 else None)
        except Fenced as error:
            failure.append(error)

    running = threading.Thread(target=run_first, daemon=True)
    running.start()
    assert committed.wait(30)
    second, taken_over = trained.trainer(steps=2), threading.Event()
    taking = threading.Thread(target=second.run, args=(lambda version: taken_over.set(),), daemon=True)
    taking.start()
    assert taken_over.wait(30)
    await publish_groups(bus, [2, 3])
    running.join(30)
    taking.join(30)
    (error,) = failure
    assert str(error).startswith("step 2 could not be committed: ")
    kinds = [type(event) for event in await events(bus)]
    assert kinds == [Term, Weights, Step, Weights, Term, Step, Weights]


async def test_another_trainer_is_refused_while_the_first_is_alive_and_writes_nothing(
    trained: TrainedRun, connect_as: Any
) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    trained.finish(steps=1)
    before, files = await messages(bus, LEDGER), trained.files()
    with pytest.raises(Fenced, match=r"trainer 'trainer' \(process \d+ on .*\) was alive \d+ s ago"):
        trained.trainer(steps=2, instance="other").run(lambda version: None)
    assert await messages(bus, LEDGER) == before
    assert trained.files() == files


async def test_a_takeover_succeeds_however_often_the_other_commits_in_between(
    trained: TrainedRun, connect_as: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    rival = trained.trainer(steps=9)._publication
    rival.open()
    left = iter(range(5))

    def read_ledger(thread: Any, view: Any) -> None:
        recovery.read_ledger(thread, view)
        if (number := next(left, None)) is not None:
            rival.append(closed(run=trained.name, group=100 + number))

    monkeypatch.setattr("consumers.trainer.restart.read_ledger", read_ledger)
    trained.finish(steps=1)
    kinds = [type(event) for event in await events(bus)]
    assert kinds == [Closed] * 5 + [Term, Weights, Step, Weights]


async def test_poison_goes_to_dead_and_the_step_is_committed(trained: TrainedRun, connect_as: Any) -> None:
    bus, reader = await connect_as("generator"), await connect_as("reader")
    await publish_groups(bus, [9], version=40)
    await publish_groups(bus, [0, 1])
    trained.finish(steps=1)
    dead = [logged.event async for logged in reader.read(DEAD)]
    assert len(dead) == 2
    assert all(isinstance(letter, Dead) and "claims weights 40" in letter.reason for letter in dead)
    assert [step.number for step in await events(bus, Step)] == [1]
    original = await anext(reader.read(ROLLOUTS))
    assert dead[0].payload == original.payload
    assert isinstance(original.event, Rollout)


async def test_the_log_is_cut_only_below_what_the_oldest_checkpoint_needs(trained: TrainedRun, connect_as: Any) -> None:
    trained.purges = True
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1, 2, 3])
    trained.finish(steps=1)
    assert (await bus.state(ROLLOUTS)).first_sequence == 5, "step 1 is the last one: it has a checkpoint"
    await publish_groups(bus, [4, 5, 6, 7])
    trained.finish(steps=3)
    steps = await events(bus, Step)
    assert [step.number for step in steps] == [1, 2, 3]
    assert trained.files() == ["step-0", "step-2", "step-3"], "steps after 2 can be trained again"
    assert (await bus.state(ROLLOUTS)).first_sequence == steps[1].low_water + 1
