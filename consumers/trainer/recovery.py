"""Recovery is replay: from the last good checkpoint, the later committed steps are trained again.

They are taken from the decisions that the ledger recorded and the rollouts in the log, and their digests are
compared with the recorded ones. Nothing is generated twice because a trainer died.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

from bus import Bus, BusThread
from schemas import LEDGER, ROLLOUTS, HeadraceError, LogGap, Rollout, Step

from .batch import micro_batches
from .judgement import Rules
from .learner import Learner
from .ledger_view import LedgerView
from .publication import Exported

log = logging.getLogger("headrace.trainer")
READ_TIMEOUT_S = 600.0


def read_ledger(thread: BusThread) -> LedgerView:
    """The whole LEDGER, folded. Raises LogGap when it is damaged."""

    async def fold(bus: Bus) -> LedgerView:
        view = LedgerView()
        async for logged in bus.read(LEDGER):
            view.apply(logged)
        return view

    return thread.call(fold, READ_TIMEOUT_S)


def read_step(thread: BusThread, sequence: int) -> tuple[Step, dict[int, Rollout]]:
    """The step at ``sequence`` of LEDGER, and the rollouts of its groups, by their sequence in ROLLOUTS.

    One that is missing is missing in the answer too. Raises LogGap where there is no step at ``sequence``.
    """

    async def read(bus: Bus) -> tuple[Step, dict[int, Rollout]]:
        step = await anext(_events(bus, sequence))
        wanted = {number for group in step.groups for number in group.sequences}
        rollouts: dict[int, Rollout] = {}
        async for logged in bus.read(ROLLOUTS, kinds=(Rollout,), start=min(wanted)):
            if logged.sequence in wanted and isinstance(logged.event, Rollout):
                rollouts[logged.sequence] = logged.event
            if logged.sequence >= max(wanted):
                break
        return step, rollouts

    return thread.call(read, READ_TIMEOUT_S)


async def _events(bus: Bus, sequence: int) -> AsyncIterator[Step]:
    async for logged in bus.read(LEDGER, kinds=(Step,), start=sequence):
        if isinstance(logged.event, Step):
            yield logged.event
    raise LogGap(f"LEDGER has no step at sequence {sequence}")


def load_newest_checkpoint(learner: Learner, committed: int) -> int:
    """Load the newest good checkpoint up to step ``committed``; returns its step, 0 for the model as it was given.

    A damaged one is reported and the one before it taken.
    """
    for step in reversed([step for step in learner.checkpoints() if step <= committed]):
        try:
            learner.load_checkpoint(step)
        except HeadraceError as error:
            log.error("checkpoint of step %d is not used: %s", step, error)
            continue
        return step
    return 0


def train_again(
    thread: BusThread,
    learner: Learner,
    view: LedgerView,
    rules: Rules,
    *,
    after: int,
    on_step: Callable[[Step, dict[str, float], str], None],
) -> Exported:
    """Train the committed steps after step ``after`` again; returns the parameters at the end.

    ``on_step`` gets each recorded step, the figures of now, and the digest of the weights of now.
    Raises LogGap where a rollout that a step needs is not there.
    """
    exported = Exported.of(learner.export())
    for number in range(after + 1, view.committed + 1):
        step, rollouts = read_step(thread, view.step_sequences[number])
        metrics = learner.step(micro_batches(number, step.groups, step.packing, rollouts, rules))
        exported = Exported.of(learner.export())
        on_step(step, metrics, exported.sha256)
    return exported
