"""The commit of a step, beside the collecting and computing of the next one.

The order is the guarantee, and each part is durable before the next begins:

    digest -> step n -> weights n under their digest -> their announcement -> low-water mark -> checkpoint n -> cut

Groups that are closed for step n + 1 are appended after step n. One step is on its way at most: the next one waits for
it before it is handed over. A trainer that is killed meanwhile has lost a step that nobody was told of, as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from bus import BusThread, Logged
from schemas import ROLLOUTS, Closed, Step, TrainedGroup

from .backlog import Backlog
from .learner import Learner
from .log_room import RoomWatch, room
from .publication import Exported, Publication
from .restart import Started
from .retention import cut
from .settings import TrainerSettings
from .stopwatch import Stopwatch
from .tally import Tally

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
    device: str
    """See ``device_name``."""


class Mark(Protocol):
    """What is acknowledged up to the low-water mark, which is for people to see: the ledger is the cursor."""

    def ack_through(self, sequence: int) -> None: ...


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was computed, and what it decided."""

    number: int
    groups: list[TrainedGroup]
    packing: list[list[list[int]]]
    tally: Tally
    metrics: dict[str, float]
    measured: Callable[[], dict[str, float]]
    """Further metrics, for which the next step need not wait."""
    payload: bytes
    """The weights that it made, as they are published."""
    rollouts_seen: int
    low_water: int
    lowest_open_group: int
    """Groups below it are settled once the step is committed."""
    save: Callable[[], None] | None
    """Makes its checkpoint, where one is due."""


class Committer:
    """Commits what it is handed, in order. Enter it; it is the ``Records`` of a Collector too.

    What fails is raised at the next call: Fenced, LogGap and other HeadraceErrors.
    """

    def __init__(
        self,
        thread: BusThread,
        learner: Learner,
        publication: Publication,
        mark: Mark,
        settings: TrainerSettings,
        provenance: Provenance,
        started: Started,
        gauges: dict[str, float],
        on_version: Callable[[int], None],
        *,
        run: str,
        purges: bool,
        log_limit_bytes: int,
    ) -> None:
        """``gauges``: gets what telemetry publishes. ``on_version`` is told of each version that is announced."""
        self._thread = thread
        self._learner = learner
        self._publication = publication
        self._mark = mark
        self._settings = settings
        self._provenance = provenance
        self._gauges = gauges
        self._on_version = on_version
        self._run = run
        self._purges = purges
        self._log_limit_bytes = log_limit_bytes
        self._checkpoint, self._exported = started.checkpoint, started.exported
        self._low_waters = started.view.low_waters
        self._room_watch = RoomWatch()
        self._gaps_known = 0
        self._waited_s = 0.0
        self._took: dict[str, float] = {}
        self._backlog = Backlog("commit")

    def __enter__(self) -> Self:
        self._backlog.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._backlog.__exit__(kind, error, trace)

    def commit(self, trained: Trained) -> None:
        """Commit a step; returns at once."""
        self._backlog.add(lambda: self._commit(trained))

    def cut_log(self, lowest_open_group: int) -> None:
        """Purge what no step after the oldest kept checkpoint needs, where the log is to be cut; returns at once."""
        self._backlog.add(lambda: self._cut_log(lowest_open_group))

    def finish(self) -> None:
        """Wait until all that was handed over is committed."""
        self._backlog.finish()

    def check(self) -> None:
        """Raise what has failed."""
        self._backlog.check()

    def close(self, closed: Closed) -> None:
        """Append that a group is left out, after the steps that were handed over; returns at once."""
        self._backlog.add(lambda: self._publication.close(closed))

    def bury(self, logged: Logged, reason: str) -> None:
        """Put a message of ROLLOUTS that cannot be used into DEAD, whole."""
        self._publication.bury(logged, reason)

    def issued_groups(self) -> int:
        """Groups that were ever issued."""
        return self._publication.issued_groups()

    def rollout_at(self, sequence: int) -> Logged | None:
        """The message at ``sequence`` of ROLLOUTS; None where it is gone."""
        return self._publication.rollout_at(sequence)

    def _commit(self, trained: Trained) -> None:
        watch = Stopwatch()
        before, self._exported = self._exported, Exported.of(trained.payload)
        digest_s = watch.lap("digest")
        step = self._record(trained, before, trained.measured() | self._took | {"digest_s": digest_s})
        watch.lap("record")
        self._publication.append(step)
        watch.lap("ledger")
        self._publication.weights(step.number, self._exported)
        watch.lap("weights")
        self._mark.ack_through(step.low_water)
        self._low_waters[step.number] = step.low_water
        self._on_version(step.number)
        if trained.save is not None:
            # Only when it is durable may the log that it replaces go.
            trained.save()
            self._checkpoint = step.number
            watch.lap("checkpoint")
            self._cut_log(trained.lowest_open_group)
        self._report(step)
        took = watch.take()
        self._gauges["commit_s"] = sum(took.values())
        self._took = {f"{part}_s": took.get(f"{part}_s", 0.0) for part in ("ledger", "weights", "checkpoint")}

    def _record(self, trained: Trained, before: Exported, metrics: dict[str, float]) -> Step:
        """``metrics``: what ``trained`` has not."""
        return Step(
            run=self._run,
            number=trained.number,
            instance=self._settings.instance,
            groups=trained.groups,
            packing=trained.packing,
            left_out=trained.tally.left_out,
            left_out_tokens=trained.tally.left_out_tokens,
            rollouts_seen=trained.rollouts_seen,
            low_water=trained.low_water,
            config_digest=self._provenance.config_digest,
            weights_before=before.sha256,
            weights_after=self._exported.sha256,
            seed=self._provenance.seed,
            checkpoint=self._checkpoint,
            libraries=self._provenance.libraries,
            threads=self._settings.threads,
            cpu=self._provenance.cpu,
            device=self._provenance.device,
            world_size=self._learner.world_size,
            metrics=trained.metrics | metrics | trained.tally.metrics(),
            env_metrics=trained.tally.env_metrics(),
        )

    def _cut_log(self, lowest_open_group: int) -> None:
        if self._purges:
            self._publication.purge(cut(self._learner.checkpoints(), self._low_waters, lowest_open_group))

    def _report(self, step: Step) -> None:
        metrics = step.metrics
        self._waited_s += metrics["wait_s"]
        self._gauges |= {
            "step": step.number,
            "waited_s": self._waited_s,
            "rollouts_held": metrics["rollouts_held"],
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
            self._gauges |= now.gauges
            if (words := self._room_watch.news(now)) is not None:
                log.warning("%s", words)
