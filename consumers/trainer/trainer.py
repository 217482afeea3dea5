"""The trainer: collects a batch, takes a step, commits it, and announces the weights.

One loop, synchronous, on the main thread; NATS has its own thread, so that the server's pings are answered and
rollouts are prefetched while a step computes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from bus import BusThread
from schemas import ROLLOUTS, Step, TrainedGroup

from .batch import lengths, micro_batches
from .collector import Collector, Inbox
from .groups import Assembly
from .interrupt import Interrupt
from .judgement import Rules
from .learner import Learner
from .ledger_view import LedgerView
from .log_room import RoomWatch, room
from .logprob_gap import DEFAULT_BOUNDS, check_logprob_gap
from .packing import pack, packing_metrics
from .publication import Exported, Publication
from .restart import Restart
from .retention import cut
from .settings import TrainerSettings
from .tally import Tally, staleness_metrics

log = logging.getLogger("headrace.trainer")


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What a step records about where it was computed."""

    config_digest: str
    """Of the part of the configuration that decides what is trained."""
    seed: int
    libraries: dict[str, str]
    """Name to version."""
    cpu: dict[str, str]
    """Features that decide bits; see ``cpu_features``."""


class RolloutInbox(Inbox, Protocol):
    """An Inbox that is acknowledged up to the low-water mark, which is for people to see: the ledger is the cursor."""

    def ack_through(self, sequence: int) -> None: ...


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
        self._gap_bound = settings.max_logprob_gap or DEFAULT_BOUNDS[publication.dtype]
        self._rules = rules
        self._provenance = provenance
        self._run = run
        self._steps = steps
        self._purges = purges
        self._log_limit_bytes = log_limit_bytes
        self._room_watch = RoomWatch()
        self._vocabulary = vocabulary
        self._interrupt = interrupt
        self._checkpoint = 0
        self._waited_s = 0.0
        self._gaps_known = 0
        self.gauges: dict[str, float] = {}
        """What telemetry publishes; read from the NATS thread."""
        self.version = 0

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
        self._checkpoint, exported = started.checkpoint, started.exported
        self.version, self._low_waters = started.view.committed, started.view.low_waters
        collector = self._collector(started.view)
        self._cut_log(collector)
        on_version(self.version)
        while self.version < self._steps:
            exported = self._step(self.version + 1, collector, exported)
            on_version(self.version)
        log.info("step %d of %d is committed: the run is finished", self.version, self._steps)

    def _collector(self, view: LedgerView) -> Collector:
        low_water = 0 if view.last_step is None else view.last_step.low_water
        self._inbox = self._open_inbox(low_water + 1)
        assembly = Assembly(self._settings.group_size, view.settled, last_sequence=low_water)
        # What lies above the mark is read, and counted, again. Letters among the dead, which do not count, are few.
        assembly.seen = 0 if view.last_step is None else min(low_water, view.last_step.rollouts_seen)
        collector = Collector(
            self._inbox,
            assembly,
            self._rules,
            self._publication,
            run=self._run,
            groups_per_step=self._settings.groups_per_step,
            vocabulary=self._vocabulary,
        )
        for closed in view.closed_since_step:
            collector.tally.closed(closed)
        return collector

    def _step(self, number: int, collector: Collector, before: Exported) -> Exported:
        began = time.monotonic()
        groups, rollouts = collector.collect(number, lambda: self._show(collector))
        collected = time.monotonic()
        document_lengths = lengths(groups, rollouts, self._rules)
        packing = pack(
            document_lengths,
            row_tokens=self._settings.row_tokens,
            micro_batch_tokens=self._settings.micro_batch_tokens,
        )
        metrics = self._learner.step(micro_batches(number, groups, packing, rollouts, self._rules))
        check_logprob_gap(number, metrics, bound=self._gap_bound)
        after = Exported.of(self._learner.export())
        trained = time.monotonic()
        metrics |= staleness_metrics(number, groups, rollouts, self._rules)
        metrics |= packing_metrics(packing, document_lengths)
        metrics |= {
            "wait_s": collected - began,
            "train_s": trained - collected,
            "rollouts_held": collector.held - len(rollouts),
        }
        with self._interrupt.deferred():
            tally = collector.next_tally()
            step = self._record(number, groups, packing, tally, metrics, before, after, collector)
            self._commit(step, after)
            collector.settle(groups)
            self._checkpoint_if_due(step, collector)
        self._report(step, time.monotonic() - trained)
        return after

    def _record(
        self,
        number: int,
        groups: list[TrainedGroup],
        packing: list[list[list[int]]],
        tally: Tally,
        metrics: dict[str, float],
        before: Exported,
        after: Exported,
        collector: Collector,
    ) -> Step:
        return Step(
            run=self._run,
            number=number,
            instance=self._settings.instance,
            groups=groups,
            packing=packing,
            left_out=tally.left_out,
            left_out_tokens=tally.left_out_tokens,
            rollouts_seen=collector.seen,
            low_water=collector.low_water(groups),
            config_digest=self._provenance.config_digest,
            weights_before=before.sha256,
            weights_after=after.sha256,
            seed=self._provenance.seed,
            checkpoint=self._checkpoint,
            libraries=self._provenance.libraries,
            threads=self._settings.threads,
            cpu=self._provenance.cpu,
            world_size=self._learner.world_size,
            metrics=metrics | tally.metrics(),
            env_metrics=tally.env_metrics(),
        )

    def _commit(self, step: Step, after: Exported) -> None:
        """Step, weights, announcement, low-water mark, in this order: each is durable before the next begins."""
        self._publication.append(step)
        self._publication.weights(step.number, after)
        self._inbox.ack_through(step.low_water)
        self.version = step.number
        self._low_waters[step.number] = step.low_water

    def _checkpoint_if_due(self, step: Step, collector: Collector) -> None:
        """Save a checkpoint; only when it is durable may the log that it replaces go."""
        if self._settings.checkpoint_due(step.number, last=self._steps):
            self._learner.save_checkpoint(step.number)
            self._checkpoint = step.number
            self._cut_log(collector)

    def _cut_log(self, collector: Collector) -> None:
        if self._purges:
            self._publication.purge(cut(self._learner.checkpoints(), self._low_waters, collector.lowest_open_group))

    def _show(self, collector: Collector) -> None:
        self._interrupt.check()
        self.gauges["rollouts_held"] = collector.held

    def _report(self, step: Step, commit_s: float) -> None:
        metrics = step.metrics
        self._waited_s += metrics["wait_s"]
        self.gauges |= {
            "step": step.number,
            "waited_s": self._waited_s,
            "rollouts_held": metrics["rollouts_held"],
            "commit_s": commit_s,
        }
        self._look_at_log(step.number)
        log.info(
            "step %d: reward %.3f loss %.4f grad norm %.3f staleness %.2f, %d tokens, waited %.2f s, trained %.2f s",
            step.number, metrics.get("reward_mean", float("nan")), metrics["loss"], metrics["grad_norm"],
            metrics["staleness_mean"], metrics["trained_tokens"], metrics["wait_s"], metrics["train_s"],
        )  # fmt: skip

    def _look_at_log(self, committed: int) -> None:
        """Show how full ROLLOUTS is, and warn in time. Raises LogGap where messages have vanished from its middle."""
        state = self._thread.call(lambda bus: bus.state(ROLLOUTS), None)
        if state.deleted > self._gaps_known:
            needed = self._low_waters[committed] + 1
            self._thread.call(lambda bus: bus.require_whole(ROLLOUTS, start=needed), None)
            self._gaps_known = state.deleted
        if (now := room(state, limit_bytes=self._log_limit_bytes, committed=committed)) is not None:
            self.gauges |= now.gauges
            if (words := self._room_watch.news(now)) is not None:
                log.warning("%s", words)
