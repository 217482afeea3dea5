"""How a trainer starts: a term, a checkpoint, the steps after it once more, and what a crash left undone.

Each of these can be cut short by another crash and done again from the beginning: nothing is renamed or written
before the term is in the ledger, and what is done already is found done.
"""

from __future__ import annotations

import logging
import os
import socket
import time

import msgspec

from bus import Bus, BusThread
from schemas import LEDGER, ROLLOUTS, TASKS, Fenced, LogGap, RunError, Step, Term, WeightsError

from .judgement import Rules
from .learner import Learner
from .ledger_view import LedgerView
from .publication import Exported, Publication
from .recovery import READ_TIMEOUT_S, later_steps, load_newest_checkpoint, read_ledger, train_again
from .settings import TrainerSettings
from .takeover import check_takeover

log = logging.getLogger("headrace.trainer")
TRIES = 20
"""Times that a term is tried while the trainer that is taken over goes on committing: each time takes milliseconds."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Where training goes on."""

    view: LedgerView
    """The ledger up to our term."""
    checkpoint: int
    """Newest step that has a checkpoint."""
    exported: Exported
    """Weights ``view.committed``, which are announced."""


class Restart:
    """Brings a new learner to the state after the last committed step."""

    def __init__(
        self,
        thread: BusThread,
        learner: Learner,
        publication: Publication,
        settings: TrainerSettings,
        rules: Rules,
        *,
        run: str,
        steps: int,
    ) -> None:
        """``steps``: at which the run is finished. ``learner``: as it was built from the model directory."""
        self._thread = thread
        self._learner = learner
        self._publication = publication
        self._settings = settings
        self._rules = rules
        self._run = run
        self._steps = steps

    def run(self) -> Started:
        """Raises Fenced where another trainer is alive, LogGap where the log lacks what is needed, and RunError where
        the model is another one.
        """
        view = self._begin_term(Exported.of(self._learner.export()))
        self._sort_checkpoints(view.committed)
        checkpoint = load_newest_checkpoint(self._learner, view.committed)
        if view.committed:
            log.info("step %d is committed, checkpoint %d is loaded", view.committed, checkpoint)
        self._check_log(view, checkpoint)
        recorded = later_steps(self._thread, view, checkpoint)
        exported = train_again(self._learner, recorded, self._rules, on_step=self._compare)
        exported = self._publish_missing(view, exported)
        self._save_missing(view.committed)
        return Started(view=view, checkpoint=max(self._learner.checkpoints()), exported=exported)

    def _begin_term(self, given: Exported) -> LedgerView:
        """Read the ledger, and append our term directly after what was read. ``given``: the model directory's weights.

        The trainer that is taken over may commit in between: then what it wrote is read, and the term tried again.
        """
        view, instance = LedgerView(), self._settings.instance
        for left in reversed(range(TRIES)):
            self._publication.open()
            read_ledger(self._thread, view)
            self._check_model(view, given)
            self._thread.call(lambda bus: check_takeover(bus, instance, time.time()), READ_TIMEOUT_S)
            try:
                self._publication.append(
                    Term(
                        run=self._run,
                        instance=instance,
                        committed=view.committed,
                        host=socket.gethostname(),
                        pid=os.getpid(),
                    )
                )
                break
            except Fenced:
                if not left:
                    raise
        return view

    def _check_model(self, view: LedgerView, given: Exported) -> None:
        """Raise RunError where the model directory does not hold weights 0."""
        first = view.first_weights
        if first is not None and first.dtype == self._publication.dtype and first.sha256 != given.sha256:
            raise RunError(
                f"the model directory holds weights {given.sha256[:12]}, and run {self._run!r} started from "
                f"{first.sha256[:12]}: name the model that it started from with --set model.path=DIR, or start "
                "another run with --set run.name=NAME"
            )

    def _sort_checkpoints(self, committed: int) -> None:
        """Set aside what is no checkpoint of this run, so that it counts nowhere; make checkpoint 0 where it is gone.

        The learner is still as the model directory made it, and that is what checkpoint 0 holds.
        """
        for step, fault in self._learner.checkpoint_faults().items():
            log.error("%s: it is set aside as %s", fault, self._learner.set_checkpoint_aside(step).name)
        for step in self._learner.checkpoints():
            if step > committed:  # After a power loss the ledger may have lost its last messages.
                place = self._learner.set_checkpoint_aside(step)
                log.error(
                    "checkpoint of step %d is newer than the ledger, which ends at step %d: it is set aside as %s",
                    step, committed, place.name,
                )  # fmt: skip
        if 0 not in self._learner.checkpoints():
            self._learner.save_checkpoint(0)

    def _check_log(self, view: LedgerView, checkpoint: int) -> None:
        """Raise LogGap where the log lacks something that going on from ``checkpoint`` needs."""
        needed = view.low_waters.get(checkpoint, 0) + 1
        begins = self._thread.call(lambda bus: bus.state(ROLLOUTS), READ_TIMEOUT_S).first_sequence
        if begins > needed:
            raise LogGap(
                f"ROLLOUTS begins at sequence {begins}, and going on from checkpoint {checkpoint} needs it from "
                f"{needed} on: restore the stream, or a checkpoint that is newer, from a backup"
            )

        async def check(bus: Bus) -> None:
            for spec, start in ((LEDGER, 1), (TASKS, 1), (ROLLOUTS, needed)):
                await bus.require_whole(spec, start=start)

        self._thread.call(check, READ_TIMEOUT_S)

    def _compare(self, step: Step, metrics: dict[str, float], sha256: str) -> None:
        same = sha256 == step.weights_after
        what = "the same weights" if same else f"other weights: {sha256[:12]}"
        log.info("step %d trained again from the log: loss %.6f, %s", step.number, metrics["loss"], what)
        if same:  # Otherwise what was announced is the state after this step, and this is not.
            self._save_missing(step.number)

    def _publish_missing(self, view: LedgerView, exported: Exported) -> Exported:
        """Announce weights that a crash left unannounced, and store again those that are lost.

        Returns the weights that are announced: one version stays one set of weights. On one CPU process training
        again gives the same; elsewhere sums may differ in their last bits, and then the announced ones are loaded.
        """
        announced = view.weights
        if announced is None or announced.version < view.committed:
            self._publication.weights(view.committed, exported)
            return exported
        if exported.sha256 == announced.sha256:
            self._publication.mend(announced, exported)
            return exported
        log.warning("training again gave other weights %d: the announced ones are loaded", view.committed)
        try:
            self._learner.load_weights(self._publication.fetch(announced))
        except WeightsError as error:
            raise RunError(
                f"{error}. Training again gave other weights ({exported.sha256[:12]}), so they cannot be put again: "
                "copy them back into the store, or start a new run"
            ) from None
        return Exported.of(self._learner.export())

    def _save_missing(self, step: int) -> None:
        """Make the checkpoint of ``step``, which the learner is at, where it is due and a crash or damage took it."""
        if self._settings.checkpoint_due(step, last=self._steps) and step not in self._learner.checkpoints():
            self._learner.save_checkpoint(step)
