"""The trainer on a real server, with a learner whose weights are a digest of all that it was given."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus import Bus, BusThread, EmbeddedServer, Ledger, WeightsStore
from consumers.trainer import Interrupt, Provenance, Publication, Rules, Trainer, TrainerSettings
from consumers.trainer.micro_batch import MicroBatch
from schemas import DEAD, LEDGER, ROLLOUTS, Closed, Dead, Event, Fenced, Rollout, Span, Step, Term, Weights
from tests.examples import SHA256, rollout

SETTINGS = TrainerSettings(groups_per_step=2, group_size=2, row_tokens=64, micro_batch_tokens=64, checkpoint_every=2)
RULES = Rules(max_off_policy_steps=2, stale="drop", advantage="mean", row_tokens=64)


class DigestLearner:
    """Its parameters are the sha256 of what they were and of the arrays it was given."""

    world_size = 1

    def __init__(self, checkpoints: Path) -> None:
        self.parameters = b"start"
        self._folder = checkpoints
        checkpoints.mkdir(exist_ok=True)

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        digest = hashlib.sha256(self.parameters)
        for batch in micro_batches:
            for array in (batch.tokens_RL, batch.trained_RL, batch.advantages_RL, batch.logprobs_RL):
                digest.update(array.tobytes())
        self.parameters = digest.digest()
        return {"loss": 0.5, "grad_norm": 1.0}

    def export(self) -> bytes:
        return self.parameters

    def load_weights(self, folder: Path) -> None:
        self.parameters = (folder / "model.safetensors").read_bytes()

    def save_checkpoint(self, step: int) -> None:
        (self._folder / f"{step}.json").write_text(json.dumps(self.parameters.hex()))

    def load_checkpoint(self, step: int) -> None:
        self.parameters = bytes.fromhex(json.loads((self._folder / f"{step}.json").read_text()))

    def checkpoints(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.json"))


class Run:
    """A trainer's surroundings in one test."""

    def __init__(self, server: EmbeddedServer, name: str, folder: Path) -> None:
        self.server, self.name, self.folder = server, name, folder
        self.threads: list[BusThread] = []
        self.purges = False

    def finish(self, *, steps: int) -> None:
        """Run a trainer as its process does: on this thread, to its end."""
        try:
            self.trainer(steps=steps).run(lambda version: None)
        finally:
            self.threads[-1].stop()

    def trainer(self, *, steps: int, instance: str = "trainer") -> Trainer:
        thread = BusThread(self.server.address("trainer"), run=self.name, role="trainer", id=instance)
        thread.start()
        self.threads.append(thread)

        async def ledger(bus: Bus) -> Ledger:
            opened = Ledger(bus, f"{instance}-{len(self.threads)}")
            await opened.open()
            return opened

        publication = Publication(
            thread,
            thread.call(ledger, 30.0),
            WeightsStore(self.folder / "weights", 0),
            run=self.name,
            instance=instance,
            dtype="float32",
        )
        return Trainer(
            thread,
            DigestLearner(self.folder / "checkpoints"),
            publication,
            lambda start: thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=60.0, start=start),
            msgspec.structs.replace(SETTINGS, instance=instance),
            RULES,
            Provenance(config_digest=SHA256, seed=0, libraries={}, cpu={}),
            run=self.name,
            steps=steps,
            purges=self.purges,
            vocabulary=64,
            interrupt=Interrupt(),
        )


@pytest.fixture
def trained(server: EmbeddedServer, run: str, tmp_path: Path) -> Iterator[Run]:
    surroundings = Run(server, run, tmp_path)
    yield surroundings
    for thread in surroundings.threads:
        thread.stop()


async def publish_groups(bus: Bus, groups: Sequence[int], *, version: int = 0, **fields: Any) -> None:
    for group in groups:
        for member in (0, 1):
            await bus.publish(
                rollout(
                    run=bus.run,
                    group=group,
                    member=member,
                    reward=float(member),
                    spans=[Span(version, 0, 6)],
                    **fields,
                )
            )


async def events(bus: Bus, *kinds: type[Event]) -> list[Any]:
    return [logged.event async for logged in bus.read(LEDGER, kinds=kinds)]


async def test_a_step_is_committed_with_everything_that_it_decided(trained: Run, connect_as: Any) -> None:
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


async def test_the_ledger_tells_the_order_of_a_commit(trained: Run, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    trained.finish(steps=1)
    kinds = [type(event) for event in await events(bus)]
    assert kinds == [Term, Weights, Step, Weights]


async def test_a_group_without_signal_is_closed_before_the_step(trained: Run, connect_as: Any) -> None:
    bus = await connect_as("generator")
    for member in (0, 1):
        await bus.publish(rollout(run=bus.run, group=0, member=member, reward=1.0, spans=[Span(0, 0, 6)]))
    await publish_groups(bus, [1, 2])
    trained.finish(steps=1)
    closed, step = await events(bus, Closed, Step)
    assert (closed.group, closed.reason, closed.step) == (0, "no_signal", 1)
    assert step.left_out == {"no_signal": 2}
    assert step.metrics["reward_mean"] == pytest.approx(4 / 6)


async def test_a_restarted_trainer_goes_on_where_the_ledger_ends(trained: Run, connect_as: Any) -> None:
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


async def test_weights_that_a_crash_left_unannounced_are_announced_after_it(trained: Run, connect_as: Any) -> None:
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


async def test_a_second_trainer_takes_over_and_the_first_is_fenced(trained: Run, connect_as: Any) -> None:
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])
    first = trained.trainer(steps=2)
    announced = threading.Event()
    failure: list[BaseException] = []

    def run_first() -> None:
        try:
            first.run(lambda version: announced.set() if version == 1 else None)
        except Fenced as error:
            failure.append(error)

    running = threading.Thread(target=run_first)
    running.start()
    assert announced.wait(30)
    second = trained.trainer(steps=2, instance="other")
    taken_over = threading.Event()
    taking = threading.Thread(target=lambda: second.run(lambda version: taken_over.set()))
    taking.start()
    assert taken_over.wait(30)
    await publish_groups(bus, [2, 3])
    running.join(30)
    taking.join(30)
    (error,) = failure
    assert "other" in str(error)
    steps = await events(bus, Step)
    assert [(step.number, step.instance) for step in steps] == [(1, "trainer"), (2, "other")]


async def test_poison_goes_to_dead_and_the_step_is_committed(trained: Run, connect_as: Any) -> None:
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


async def test_the_log_is_cut_only_below_what_the_oldest_checkpoint_needs(trained: Run, connect_as: Any) -> None:
    trained.purges = True
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1, 2, 3])
    trained.finish(steps=1)
    assert (await bus.state(ROLLOUTS)).first_sequence == 5, "step 1 is the last one: it has a checkpoint"
    await publish_groups(bus, [4, 5, 6, 7])
    trained.finish(steps=3)
    steps = await events(bus, Step)
    assert [step.number for step in steps] == [1, 2, 3]
    # Checkpoints 1, 2 and 3 are kept (this learner removes none): steps after 1 can be trained again.
    assert (await bus.state(ROLLOUTS)).first_sequence == steps[0].low_water + 1
