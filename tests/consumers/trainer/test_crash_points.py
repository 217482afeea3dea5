"""A trainer is killed before or after each of its writes, in training and in its recovery, and starts again.

Writes are those to the ledger, to the weights store, to the folder of checkpoints, and purges. A killed process
cleans nothing up: from the kill on, none of its writes has any effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, EmbeddedServer, FileWeights, Ledger, connect
from bus.settings import LogSettings, WeightsSettings
from consumers.trainer import Exported, checkpoint_folder
from schemas import ROLLOUTS, TASKS, Step, Term, Weights
from tests.consumers.trainer.digest_learner import SparseLearner
from tests.consumers.trainer.trained_run import TrainedRun, events, publish_steps, publish_tasks, sha256_of

STEPS = 2
"""Of a life that is killed; the last one takes another step."""
WRITES: list[tuple[Any, str]] = [
    (Ledger, "append"),
    (FileWeights, "put"),
    (FileWeights, "put_delta"),
    (FileWeights, "prune"),
    (Bus, "purge"),
    (Path, "rename"),
    (Path, "unlink"),
    (checkpoint_folder, "_write_manifest"),
    (checkpoint_folder, "_remove"),
]


ANNOUNCE = ["put", "append", "prune"]
WRITTEN = ["rename", "_remove", "unlink", "_write_manifest", "rename"]
"""The lock is named, the place made empty; then the checkpoint is complete, and named."""
PRUNED, CLEANED = ["rename", "_remove"], ["_remove", "unlink"]
CUT = ["purge", "purge"]


def life(first: list[str], second: list[str]) -> list[str]:
    """What a life of STEPS writes, with what announces weights 1 and 2.

    Its term, checkpoint 0 and weights 0; then for each step the step, its weights and a checkpoint; and whatever then
    may go.
    """
    return [
        "append", *WRITTEN, *CLEANED, *ANNOUNCE, *CUT,
        "append", *first, *WRITTEN, *CLEANED, *CUT,
        "append", *second, *WRITTEN, *PRUNED, *CLEANED, *CUT,
    ]  # fmt: skip


LIFE = life(ANNOUNCE, ANNOUNCE)
DELTA_LIFE = life(["put_delta", "append", "prune"], ["put_delta", "append", "put", "prune"])
"""Of a trainer that publishes each version as a delta, and each second one whole too."""
AT_WEIGHTS = [at for at, name in enumerate(DELTA_LIFE) if name in ("put", "put_delta", "append", "prune")]


class Killed(BaseException):
    """The process has died."""


class Fate:
    """Kills at write number ``at`` (from 0), before it has an effect or after it."""

    def __init__(self, at: int | None, *, after: bool = False) -> None:
        self._at, self._after = at, after
        self.writes: list[str] = []
        self.dead = False

    def before(self, name: str) -> None:
        if self.dead:
            raise Killed
        self.writes.append(name)
        if not self._after:
            self._strike()

    def after(self) -> None:
        if self._after:
            self._strike()

    def _strike(self) -> None:
        if self._at is not None and len(self.writes) > self._at:
            self.dead = True
            raise Killed


@contextmanager
def fated(fate: Fate) -> Iterator[None]:
    """Every write asks ``fate`` first."""

    def now(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            fate.before(name)
            result = act(*arguments, **named)
            fate.after()
            return result

        return write

    def later(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        async def write(*arguments: Any, **named: Any) -> Any:
            fate.before(name)
            result = await act(*arguments, **named)
            fate.after()
            return result

        return write

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in WRITES:
            wrap = later if owner in (Ledger, FileWeights, Bus) else now
            patch.setattr(owner, name, wrap(name, getattr(owner, name)))
        yield


def live(trained: TrainedRun, fate: Fate) -> bool:
    """One life of a trainer; whether it was killed."""
    trainer = trained.trainer(steps=STEPS)
    try:
        with fated(fate):
            trainer.run(lambda version: None)
    except Killed:
        return True
    finally:
        trained.threads.pop().stop()
    return False


async def check(trained: TrainedRun, bus: Bus, expected: list[str], *, lives: int) -> None:
    """The last life goes on to the step after STEPS; then all is as if there had been that life only."""
    trained.finish(steps=STEPS + 1)
    steps, weights = await events(bus, Step), await events(bus, Weights)
    assert [step.number for step in steps] == list(range(1, STEPS + 2))
    assert [group.group for step in steps for group in step.groups] == list(range(2 * STEPS + 2))
    assert [step.low_water for step in steps] == [4, 8, 12]
    digests = [steps[0].weights_before, *(step.weights_after for step in steps)]
    assert [step.weights_before for step in steps] == digests[:-1]
    assert digests == expected
    assert [(each.version, each.sha256) for each in weights] == list(enumerate(digests))
    store = FileWeights(trained.weights, 0)
    assert [sha256_of(await store.fetch(each) / "model.safetensors") for each in weights] == digests
    assert len(await events(bus, Term)) <= lives
    assert trained.files() == ["step-0", "step-3"]
    learner = trained.learner()
    assert learner.checkpoint_faults() == {}
    learner.load_checkpoint(3)
    assert Exported.of(learner.export()).sha256 == digests[3]
    assert (await bus.state(ROLLOUTS)).first_sequence == 13
    assert (await bus.state(TASKS)).first_sequence == 2 * STEPS + 2


async def publish(trained: TrainedRun) -> None:
    """Tasks and rollouts for all steps."""
    for role in ("dispatcher", "generator"):
        bus = await connect(trained.server.address(role), run=trained.name, role=role, id="test")
        await (publish_tasks(bus, 2 * STEPS + 2) if role == "dispatcher" else publish_steps(bus, STEPS + 1))
        await bus.close()


@pytest.fixture
async def bus(trained: TrainedRun, connect_as: Any) -> Bus:
    """Reads a run that has rollouts for all steps."""
    await publish(trained)
    trained.purges, trained.checkpoint_every, trained.keep = True, 1, 1
    reader: Bus = await connect_as("reader")
    return reader


@pytest.fixture(scope="module")
def undisturbed(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Digests of all weights of such a run that has one life."""
    return digests_of(TrainedRun(server, "undisturbed", tmp_path_factory.mktemp("undisturbed")))


@pytest.fixture(scope="module")
def undisturbed_deltas(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The same of a run whose weights are deltas."""
    trained = TrainedRun(server, "undisturbed-deltas", tmp_path_factory.mktemp("undisturbed"))
    publish_deltas(trained)
    return digests_of(trained)


def publish_deltas(trained: TrainedRun) -> None:
    """Have its trainers publish what changed, and each second version whole too."""
    trained.learner = lambda: SparseLearner(trained.checkpoints, keep=trained.keep)
    trained.whole_every = 2


def digests_of(trained: TrainedRun) -> list[str]:
    """Of all weights, of a run that is not disturbed."""

    async def run() -> list[str]:
        admin = await connect(trained.server.address("admin"), run=trained.name, role="admin", id="test")
        await admin.apply_topology(LogSettings(), WeightsSettings())
        await publish(trained)
        trained.finish(steps=STEPS + 1)
        digests = [weights.sha256 for weights in await events(admin, Weights)]
        await admin.close()
        return digests

    return asyncio.run(run())


async def test_a_life_writes_what_these_tests_kill_it_at(trained: TrainedRun, bus: Bus) -> None:
    fate = Fate(None)
    assert not live(trained, fate)
    assert fate.writes == LIFE


@pytest.mark.parametrize("kills", [[at] for at in range(len(LIFE))], ids=str)
async def test_a_trainer_that_was_killed_goes_on_as_if_it_had_not_been(
    kills: list[int], trained: TrainedRun, bus: Bus, undisturbed: list[str]
) -> None:
    assert live(trained, Fate(*kills))
    await check(trained, bus, undisturbed, lives=2)


@pytest.mark.parametrize("kills", [[at, 5 * at % 11, 7 * at % 13] for at in range(len(LIFE))], ids=str)
async def test_a_recovery_that_is_killed_itself_is_recovered_from(
    kills: list[int], trained: TrainedRun, bus: Bus, undisturbed: list[str]
) -> None:
    for at in kills:
        live(trained, Fate(at))
    await check(trained, bus, undisturbed, lives=4)


async def test_a_life_with_deltas_writes_what_these_tests_kill_it_at(trained: TrainedRun, bus: Bus) -> None:
    publish_deltas(trained)
    fate = Fate(None)
    assert not live(trained, fate)
    assert fate.writes == DELTA_LIFE


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", AT_WEIGHTS)
async def test_a_trainer_that_was_killed_at_a_delta_goes_on_as_if_it_had_not_been(
    at: int, after: bool, trained: TrainedRun, bus: Bus, undisturbed_deltas: list[str]
) -> None:
    publish_deltas(trained)
    assert live(trained, Fate(at, after=after))
    await check(trained, bus, undisturbed_deltas, lives=2)
