"""A step is committed while the next one is collected and computed, and nothing of the order is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from consumers.trainer.micro_batch import MicroBatch
from schemas import Closed, Span, Step, Term, Weights
from tests.consumers.trainer.digest_learner import DigestLearner
from tests.consumers.trainer.trained_run import TrainedRun, events, publish_groups
from tests.examples import rollout


class Refused(BaseException):
    """The store takes nothing."""


def held(trainer: Any, gate: threading.Event, version: int) -> None:
    """Have the weights of ``version`` wait for ``gate`` before they are stored."""
    publish = trainer._publication.weights

    def weights(number: int, exported: Any) -> Weights:
        if number == version:
            assert gate.wait(30)
        return publish(number, exported)

    trainer._publication.weights = weights


async def test_the_next_step_is_computed_while_one_is_committed(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1, 2, 3])
    computed = threading.Event()

    class Telling(DigestLearner):
        steps = 0

        def step(self, micro_batches: list[MicroBatch]) -> dict[str, float]:  # type: ignore[override]
            self.steps += 1
            if self.steps == 2:
                computed.set()
            return super().step(micro_batches)

    trained.learner = lambda: Telling(trained.checkpoints)
    trainer = trained.trainer(steps=2)
    held(trainer, computed, version=1)  # Without the second step the first would never be announced.
    trainer.run(lambda version: None)
    trained.threads[-1].stop()
    assert [type(event) for event in await events(bus)] == [Term, Weights, Step, Weights, Step, Weights]


async def test_one_step_at_most_is_on_its_way(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, range(6))  # type: ignore[arg-type]
    gate, exported = threading.Event(), []

    class Exporting(DigestLearner):
        def export(self) -> bytes:
            exported.append(self.parameters)
            return super().export()

    trained.learner = lambda: Exporting(trained.checkpoints)
    trainer = trained.trainer(steps=3)
    held(trainer, gate, version=1)
    computed: list[int] = []
    step = trainer._learner.step

    def count(batches: Any) -> dict[str, float]:
        computed.append(len(exported))
        if len(computed) == 2:
            threading.Timer(0.2, gate.set).start()
        return step(batches)

    trainer._learner.step = count  # type: ignore[method-assign]
    trainer.run(lambda version: None)
    trained.threads[-1].stop()
    assert len(computed) == 3
    assert [event.number for event in await events(bus, Step)] == [1, 2, 3]
    (first, second, _) = (event.metrics for event in await events(bus, Step))
    assert second["commit_wait_s"] > 0.1, "step 2 waited for the commit of step 1"
    assert first["commit_wait_s"] < 0.1


async def test_a_group_closed_for_the_next_step_is_appended_after_the_one_before(
    trained: TrainedRun, connect_as: Any
) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    for member in (0, 1):
        await bus.publish(rollout(run=bus.run, group=2, member=member, reward=1.0, spans=[Span(0, 0, 6)]))
    await publish_groups(bus, [3, 4])
    trainer = trained.trainer(steps=2)
    append, began = trainer._publication.append, threading.Event()

    def slow(event: Any) -> int:
        if isinstance(event, Step) and event.number == 1:
            assert began.wait(30)  # until step 2 has closed its group and is computed
        return append(event)

    trainer._publication.append = slow  # type: ignore[method-assign]
    step, taken = trainer._learner.step, []

    def tell(batches: Any) -> dict[str, float]:
        taken.append(batches)
        if len(taken) == 2:
            began.set()
        return step(batches)

    trainer._learner.step = tell  # type: ignore[method-assign]
    trainer.run(lambda version: None)
    trained.threads[-1].stop()
    kinds = [type(event) for event in await events(bus)]
    assert kinds == [Term, Weights, Step, Weights, Closed, Step, Weights]
    first, second = await events(bus, Step)
    assert (first.left_out, second.left_out) == ({}, {"no_signal": 2})


async def test_what_fails_in_a_commit_ends_the_trainer(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    trainer = trained.trainer(steps=9)
    publish = trainer._publication.weights

    def refuse(number: int, exported: Any) -> Weights:
        if number == 1:
            raise Refused
        return publish(number, exported)

    trainer._publication.weights = refuse  # type: ignore[method-assign]
    with pytest.raises(Refused):
        trainer.run(lambda version: None)  # which waits for rollouts of step 2
    trained.threads[-1].stop()
    assert [event.number for event in await events(bus, Step)] == [1]


async def test_a_step_tells_where_its_time_went(trained: TrainedRun, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1, 2, 3])
    trained.finish(steps=2)
    first, second = (step.metrics for step in await events(bus, Step))
    parts = ("assemble_s", "pack_s", "commit_wait_s", "export_s", "snapshot_s")
    for metrics in (first, second):
        assert metrics["overhead_s"] == pytest.approx(sum(metrics[part] for part in parts))
        assert metrics["digest_s"] > 0
    assert "weights_s" not in first, "no step was committed before it"
    assert second["ledger_s"] > 0
    assert second["weights_s"] > 0
    assert second["checkpoint_s"] == 0, "step 1 has none"


async def test_ranks_that_write_a_checkpoint_together_do_so_before_the_next_step(
    trained: TrainedRun, connect_as: Any
) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1, 2, 3])
    order: list[str] = []

    class Two(DigestLearner):
        world_size = 2

        def step(self, micro_batches: list[MicroBatch]) -> dict[str, float]:  # type: ignore[override]
            order.append("step")
            return super().step(micro_batches)

        def begin_checkpoint(self, step: int) -> Callable[[], None]:
            write = super().begin_checkpoint(step)

            def written() -> None:
                write()
                order.append(f"checkpoint {step}")

            return written

    trained.checkpoint_every = 1
    trained.learner = lambda: Two(trained.checkpoints)
    trained.finish(steps=2)
    assert order == ["checkpoint 0", "step", "checkpoint 1", "step", "checkpoint 2"]
