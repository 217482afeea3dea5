"""Weights of which only what changed is published: what a trainer stores, announces, and puts again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, FileWeights, Ledger
from consumers.trainer import Publication
from consumers.trainer.publication import Exported
from schemas import WEIGHTS_MISSING, Metric, Weights, WeightsError
from tests.consumers.trainer.digest_learner import SparseLearner
from tests.consumers.trainer.trained_run import TrainedRun, events, publish_steps, publish_tasks, sha256_of
from tests.waiting import eventually

FILE = "model.safetensors"


@pytest.fixture
def sparse(trained: TrainedRun) -> TrainedRun:
    """A run of which every third version is stored whole."""
    trained.learner = lambda: SparseLearner(trained.checkpoints)
    trained.whole_every = 3
    return trained


async def publish(connect_as: Any, steps: int) -> Bus:
    """What so many steps train; returns a reader."""
    await publish_tasks(await connect_as("dispatcher"), 2 * steps)
    await publish_steps(await connect_as("generator"), steps)
    reader: Bus = await connect_as("reader")
    return reader


def whole(trained: TrainedRun) -> set[str]:
    """sha256 of what is stored as a whole file."""
    return {path.parent.name for path in trained.weights.glob(f"*/{FILE}")}


async def check_all(trained: TrainedRun, announced: list[Weights], cache: Path) -> None:
    """Who joins now can have every version that was announced."""
    for weights in announced:
        store = FileWeights(trained.weights, 0, cache=cache / str(weights.version))
        assert sha256_of(await store.fetch(weights) / FILE) == weights.sha256


async def test_versions_between_whole_ones_are_deltas_to_the_one_before(
    sparse: TrainedRun, connect_as: Any, tmp_path: Path
) -> None:
    reader = await publish(connect_as, 5)
    sparse.finish(steps=5)
    announced: list[Weights] = await events(reader, Weights)
    assert [weights.base for weights in announced] == [None, 0, 1, 2, 3, 4]
    assert whole(sparse) == {announced[0].sha256, announced[3].sha256}
    for weights in announced[1:]:
        (file,) = (sparse.weights / "deltas").glob(f"{weights.sha256}.*")
        assert file.stat().st_size == weights.delta_bytes < weights.size_bytes / 2
    await check_all(sparse, announced, tmp_path)


async def test_a_trainer_that_starts_again_puts_the_newest_whole_and_goes_on_with_deltas(
    sparse: TrainedRun, connect_as: Any, tmp_path: Path
) -> None:
    reader = await publish(connect_as, 3)
    sparse.finish(steps=2)
    for file in (sparse.weights / "deltas").iterdir():
        file.write_bytes(b"damaged")
    sparse.finish(steps=3)
    announced: list[Weights] = await events(reader, Weights)
    assert [weights.base for weights in announced] == [None, 0, 1, 2]
    assert whole(sparse) >= {announced[2].sha256}
    await check_all(sparse, announced[2:], tmp_path)


async def test_announced_weights_that_are_deltas_are_loaded_where_training_again_gives_others(
    sparse: TrainedRun, connect_as: Any
) -> None:
    reader = await publish(connect_as, 3)
    sparse.checkpoint_every = 5
    sparse.finish(steps=2)
    announced: list[Weights] = await events(reader, Weights)

    loaded: list[bytes] = []

    class Drifting(SparseLearner):
        """Sums in another order than before, until it has loaded what was announced."""

        def step(self, micro_batches: Any) -> dict[str, float]:
            self.parameters = self.parameters if loaded else bytes(32)
            return super().step(micro_batches)

        def load_weights(self, folder: Path) -> None:
            super().load_weights(folder)
            loaded.append(self.export())

    SparseLearner(sparse.checkpoints).set_checkpoint_aside(2)
    sparse.learner = lambda: Drifting(sparse.checkpoints)
    sparse.finish(steps=3)
    assert [Exported.of(each).sha256 for each in loaded] == [announced[2].sha256]


async def test_deltas_that_add_up_to_half_of_the_weights_are_followed_by_whole_ones(
    sparse: TrainedRun, connect_as: Any
) -> None:
    sparse.whole_every = 100
    reader = await publish(connect_as, 9)
    sparse.finish(steps=9)
    announced: list[Weights] = await events(reader, Weights)
    since = 0
    for weights in announced:
        since += weights.delta_bytes or 0
        if weights.sha256 in whole(sparse):
            assert weights.version == 0 or since > weights.size_bytes / 2
            since = 0
        assert since <= weights.size_bytes / 2
    assert len(whole(sparse)) > 1


async def test_weights_that_change_in_all_of_their_bytes_are_whole(trained: TrainedRun, connect_as: Any) -> None:
    trained.whole_every = 3
    reader = await publish(connect_as, 3)
    trained.finish(steps=3)
    announced: list[Weights] = await events(reader, Weights)
    assert [(weights.base, weights.delta_bytes) for weights in announced] == [(None, None)] * 4
    assert whole(trained) == {weights.sha256 for weights in announced}


async def test_weights_that_a_generator_cannot_make_are_put_whole_also_after_a_refusal(
    connect_as: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, generator = await connect_as("trainer"), await connect_as("generator")
    ledger = Ledger(trainer, "trainer")
    await ledger.open()

    class Here:
        """Runs what it is given in this thread's loop."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop

        def call(self, act: Any, timeout_s: float | None) -> Any:
            return asyncio.run_coroutine_threadsafe(act(trainer), self._loop).result(timeout_s)

    thread: Any = Here(asyncio.get_running_loop())
    store = FileWeights(tmp_path, 0)
    publication = Publication(thread, ledger, store, run=trainer.run, dtype="float32", whole_every=8)
    payloads = [bytes(4096), bytes(4092) + b"more"]
    announced = [
        await asyncio.to_thread(publication.weights, version, Exported.of(payload))
        for version, payload in enumerate(payloads)
    ]
    (file,) = (tmp_path / "deltas").iterdir()
    file.write_bytes(b"damaged")
    put, refusals = store.put, [WeightsError("the disk is full")]

    async def refuse_once(*args: Any, **how: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await put(*args, **how)

    monkeypatch.setattr(store, "put", refuse_once)
    mending = asyncio.create_task(publication.mend_on_demand(trainer))
    place = tmp_path / announced[1].sha256 / FILE

    async def ask(version: int) -> None:
        gauges = {WEIGHTS_MISSING: float(version)}
        await generator.announce(Metric(run=trainer.run, role="generator", id="g0", gauges=gauges))

    async def mended() -> bool:
        await ask(0)  # Only the newest can be put: what is older may be gone.
        await ask(1)
        return place.is_file()

    assert not place.is_file()
    await eventually(mended)
    assert place.read_bytes() == payloads[1]
    mending.cancel()
    await asyncio.gather(mending, return_exceptions=True)
