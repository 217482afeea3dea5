"""The trainer: collects a batch, takes a step, and hands it over to be committed.

One loop, synchronous, on the main thread. A step is committed in a thread of its own while the next one is collected
and computed; NATS has its own thread too, so that the server's pings are answered and rollouts are prefetched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from bus import BusThread
from schemas import Rollout, TrainedGroup

from .batch import lengths, micro_batches
from .collector import Collector, Inbox
from .committer import Committer, Mark, Provenance, Trained
from .groups import Assembly
from .interrupt import Interrupt
from .judgement import Rules
from .learner import Learner
from .ledger_view import LedgerView
from .logprob_gap import check_logprob_gap, default_bound
from .packing import pack, packing_metrics
from .publication import Publication
from .restart import Restart
from .settings import TrainerSettings
from .stopwatch import Stopwatch
from .tally import staleness_metrics, step_times

log = logging.getLogger("headrace.trainer")


class RolloutInbox(Inbox, Mark, Protocol):
    """An Inbox that is acknowledged up to the low-water mark."""


class Trainer:
    """Trains from the ledger's last committed step to step ``steps``.

    ``open_inbox`` gives the rollouts from a sequence of ROLLOUTS on. ``purges``: whether the log is cut after each
    checkpoint (``log.keep = "checkpoints"``). ``log_limit_bytes``: what ROLLOUTS may hold.
    """

    def __init__(
        self,
        thread: BusThread,
        learner: Learner,
        publication: Publication,
        open_inbox: Callable[[int], RolloutInbox],
        settings: TrainerSettings,
        rules: Rules,
        provenance: Provenance,
        *,
        run: str,
        steps: int,
        purges: bool,
        log_limit_bytes: int,
        vocabulary: int,
        interrupt: Interrupt,
    ) -> None:
        self._thread = thread
        self._learner = learner
        self._publication = publication
        self._open_inbox = open_inbox
        self._settings = settings
        # A generator computes in the type of the weights that it is sent.
        self._gap_bound = settings.max_logprob_gap or default_bound(
            trainer=learner.computes_in, generator=publication.dtype
        )
        self._rules = rules
        self._provenance = provenance
        self._run = run
        self._steps = steps
        self._purges = purges
        self._log_limit_bytes = log_limit_bytes
        self._vocabulary = vocabulary
        self._interrupt = interrupt
        self.gauges: dict[str, float] = {}
        """What telemetry publishes; read from the NATS thread."""

    def run(self, on_version: Callable[[int], None]) -> None:
        """Recover, then step until the last one. ``on_version`` is told of each version that is announced.

        Raises Fenced, LogGap and other HeadraceErrors; Interrupted when asked to end.
        """
        started = Restart(
            self._thread,
            self._learner,
            self._publication,
            self._settings,
            self._rules,
            run=self._run,
            steps=self._steps,
        ).run()
        low_water = 0 if started.view.last_step is None else started.view.last_step.low_water
        inbox = self._open_inbox(low_water + 1)
        committer = Committer(
            self._thread,
            self._learner,
            self._publication,
            inbox,
            self._settings,
            self._provenance,
            started,
            self.gauges,
            on_version,
            run=self._run,
            purges=self._purges,
            log_limit_bytes=self._log_limit_bytes,
        )
        collector = self._collector(started.view, inbox, committer)
        with committer:
            committer.cut_log(collector.lowest_open_group)
            on_version(started.view.committed)
            watch = Stopwatch()
            for number in range(started.view.committed + 1, self._steps + 1):
                self._step(number, collector, committer, watch)
            committer.finish()
        log.info("step %d of %d is committed: the run is finished", self._steps, self._steps)

    def _collector(self, view: LedgerView, inbox: Inbox, committer: Committer) -> Collector:
        low_water = 0 if view.last_step is None else view.last_step.low_water
        assembly = Assembly(self._settings.group_size, view.settled, last_sequence=low_water)
        # What lies above the mark is read, and counted, again. Letters among the dead, which do not count, are few.
        assembly.seen = 0 if view.last_step is None else min(low_water, view.last_step.rollouts_seen)
        collector = Collector(
            inbox,
            assembly,
            self._rules,
            committer,
            run=self._run,
            groups_per_step=self._settings.groups_per_step,
            vocabulary=self._vocabulary,
        )
        for closed in view.closed_since_step:
            collector.tally.closed(closed)
        return collector

    def _step(self, number: int, collector: Collector, committer: Committer, watch: Stopwatch) -> None:
        groups, rollouts = collector.collect(number, lambda: self._show(collector, committer))
        watch.lap("collect")
        document_lengths = lengths(groups, rollouts, self._rules)
        packing = pack(
            document_lengths,
            row_tokens=self._settings.row_tokens,
            micro_batch_tokens=self._settings.micro_batch_tokens,
        )
        batches = micro_batches(number, groups, packing, rollouts, self._rules)
        watch.lap("pack")
        metrics = self._learner.step(batches)
        check_logprob_gap(number, metrics, bound=self._gap_bound)
        watch.lap("compute")
        committer.finish()
        watch.lap("commit_wait")
        payload = self._learner.export()
        watch.lap("export")
        metrics["rollouts_held"] = collector.held - len(rollouts)
        with self._interrupt.deferred():
            due = self._settings.checkpoint_due(number, last=self._steps)
            save = self._learner.begin_checkpoint(number) if due else None
            watch.lap("snapshot")
            metrics |= step_times(watch.take(), wait_s=collector.take_waited_s())
            measured = partial(self._measured, number, groups, rollouts, packing, document_lengths)
            self._hand_over(number, groups, packing, metrics, measured, payload, save, collector, committer)
        if save is not None and self._learner.world_size > 1:
            committer.finish()  # All ranks write the checkpoint, so none of them may begin the next step.
            watch.lap("commit_wait")

    def _hand_over(
        self,
        number: int,
        groups: list[TrainedGroup],
        packing: list[list[list[int]]],
        metrics: dict[str, float],
        measured: Callable[[], dict[str, float]],
        payload: bytes,
        save: Callable[[], None] | None,
        collector: Collector,
        committer: Committer,
    ) -> None:
        """Have the step committed; what it trains is settled for the next one."""
        seen, low_water, tally = collector.seen, collector.low_water(groups), collector.next_tally()
        collector.settle(groups)
        committer.commit(
            Trained(
                number=number,
                groups=groups,
                packing=packing,
                tally=tally,
                metrics=metrics,
                measured=measured,
                payload=payload,
                rollouts_seen=seen,
                low_water=low_water,
                lowest_open_group=collector.lowest_open_group,
                save=save,
            )
        )

    def _measured(
        self,
        number: int,
        groups: list[TrainedGroup],
        rollouts: dict[int, Rollout],
        packing: list[list[list[int]]],
        document_lengths: list[int],
    ) -> dict[str, float]:
        return staleness_metrics(number, groups, rollouts, self._rules) | packing_metrics(packing, document_lengths)

    def _show(self, collector: Collector, committer: Committer) -> None:
        self._interrupt.check()
        committer.check()
        self.gauges["rollouts_held"] = collector.held
