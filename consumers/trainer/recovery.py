"""Recovery is replay: from the last good checkpoint, the later committed steps are trained again.

They are taken from the decisions that the ledger recorded and the rollouts in the log, and their digests are
compared with the recorded ones. Nothing is generated twice because a trainer died. All of this only reads:
``headrace replay`` does the same beside a run that goes on. What a trainer does besides is in restart.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial

from bus import Bus, BusThread
from schemas import LEDGER, ROLLOUTS, LogGap, Rollout, Step

from .batch import micro_batches
from .checkpoint_folder import CheckpointDamaged
from .judgement import Rules
from .learner import Learner
from .ledger_view import LedgerView
from .publication import Exported

log = logging.getLogger("headrace.trainer")
READ_TIMEOUT_S = 600.0


def read_ledger(thread: BusThread, view: LedgerView) -> None:
    """Take into account what LEDGER holds after what ``view`` knows. Raises LogGap when it is damaged."""

    async def fold(bus: Bus) -> None:
        async for logged in bus.read(LEDGER, start=view.sequence + 1):
            view.apply(logged)

    thread.call(fold, READ_TIMEOUT_S)


async def read_steps(bus: Bus, start: int) -> AsyncIterator[tuple[Step, dict[int, Rollout]]]:
    """The steps from sequence ``start`` of LEDGER on, each with the rollouts of its groups by sequence in ROLLOUTS.

    A rollout that is missing is missing in the answer too.
    """
    async for logged in bus.read(LEDGER, kinds=(Step,), start=start):
        if isinstance(logged.event, Step):
            yield logged.event, await _rollouts_of(bus, logged.event)


async def _rollouts_of(bus: Bus, step: Step) -> dict[int, Rollout]:
    wanted = {number for group in step.groups for number in group.sequences}
    rollouts: dict[int, Rollout] = {}
    async for logged in bus.read(ROLLOUTS, kinds=(Rollout,), start=min(wanted)):
        if logged.sequence in wanted and isinstance(logged.event, Rollout):
            rollouts[logged.sequence] = logged.event
        if logged.sequence >= max(wanted):
            break
    return rollouts


def later_steps(thread: BusThread, view: LedgerView, after: int) -> Iterator[tuple[Step, dict[int, Rollout]]]:
    """The committed steps after step ``after``, one at a time. Raises LogGap where LEDGER no longer has one."""

    async def read(bus: Bus, sequence: int) -> tuple[Step, dict[int, Rollout]]:
        async for recorded in read_steps(bus, sequence):
            return recorded
        raise LogGap(f"LEDGER has no step at sequence {sequence}")

    for number in range(after + 1, view.committed + 1):
        sequence = view.step_sequences[number]
        yield thread.call(partial(read, sequence=sequence), READ_TIMEOUT_S)


def load_newest_checkpoint(learner: Learner, committed: int) -> int:
    """Load the newest good checkpoint up to step ``committed``; returns its step, 0 for the model as it was given.

    A damaged one is reported and the one before it taken. Raises CheckpointUnusable for one of another model.
    """
    for step in reversed([step for step in learner.checkpoints() if step <= committed]):
        try:
            learner.load_checkpoint(step)
        except CheckpointDamaged as error:
            log.error("%s: it is passed over", error)
            continue
        return step
    return 0


def train_again(
    learner: Learner,
    recorded: Iterable[tuple[Step, Mapping[int, Rollout]]],
    rules: Rules,
    *,
    on_step: Callable[[Step, dict[str, float], str], None],
) -> Exported:
    """Train recorded steps again, each from the rollouts of its groups; returns the parameters at the end.

    ``on_step`` gets each recorded step, the figures of now, and the digest of the weights of now.
    Raises LogGap where a rollout that a step needs is not there.
    """
    exported = Exported.of(learner.export())
    for step, rollouts in recorded:
        metrics = learner.step(micro_batches(step.number, step.groups, step.packing, rollouts, rules))
        exported = Exported.of(learner.export())
        on_step(step, metrics, exported.sha256)
    return exported
