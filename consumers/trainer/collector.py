"""Collecting a step's batch: pull, validate, assemble, judge, close what teaches nothing, take the oldest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from bus import Delivery
from schemas import Closed, Rollout, TrainedGroup

from .failures import FailureWatch
from .groups import Assembly, Group
from .judgement import Rules, judge
from .tally import Tally, group_metrics

log = logging.getLogger("headrace.trainer")
POLL_S = 0.5
"""How long one wait for a rollout lasts before the trainer looks whether it should stop."""


class Inbox(Protocol):
    """Where rollouts come from: the next, None where none came in time, or BusError where none will come."""

    def get(self, timeout_s: float) -> Delivery | None: ...


class Collector:
    """Holds what has arrived and is not settled, across steps.

    ``close`` publishes a group's ``closed`` event; ``bury`` puts an unusable message into DEAD. Both return
    when it is durable.
    """

    def __init__(
        self,
        inbox: Inbox,
        assembly: Assembly,
        rules: Rules,
        *,
        run: str,
        groups_per_step: int,
        vocabulary: int,
        close: Callable[[Closed], None],
        bury: Callable[[Delivery, str], None],
    ) -> None:
        self._inbox = inbox
        self._assembly = assembly
        self._rules = rules
        self._run = run
        self._groups_per_step = groups_per_step
        self._vocabulary = vocabulary
        self._close = close
        self._bury = bury
        self._duplicates_told = 0
        self._failures = FailureWatch()
        self.tally = Tally()

    @property
    def held(self) -> int:
        """Rollouts that have arrived and are not settled."""
        return self._assembly.held

    @property
    def seen(self) -> int:
        """Rollouts taken in so far in this run, duplicates included."""
        return self._assembly.seen

    @property
    def lowest_open_group(self) -> int:
        """All groups below this number are trained or closed."""
        return self._assembly.lowest_open

    def collect(self, step: int, idle: Callable[[], None]) -> tuple[list[TrainedGroup], dict[int, Rollout]]:
        """The groups that ``step`` trains, lowest numbers first, and their rollouts by sequence.

        ``idle`` is called between waits; it may raise to end collecting. Raises RunError when most rollouts fail.
        """
        ready: dict[int, tuple[TrainedGroup, Group]] = {}
        for group in self._assembly.complete():
            self._judge(group, step, ready)
        while len(ready) < self._groups_per_step:
            delivery = self._inbox.get(POLL_S)
            idle()
            if delivery is not None and (completed := self._arrive(delivery, step)) is not None:
                self._failures.take(completed)
                self._judge(completed, step, ready)
        return self._take(ready)

    def low_water(self, groups: list[TrainedGroup]) -> int:
        """The low-water mark of ROLLOUTS once the step that trains ``groups`` is committed."""
        return self._assembly.low_water(settling={group.group for group in groups})

    def settle(self, groups: list[TrainedGroup]) -> None:
        """The step that trains ``groups`` is committed."""
        for group in groups:
            self._assembly.settle(group.group)

    def next_tally(self) -> Tally:
        """Begin to count anew; returns what was counted."""
        self.tally.duplicates(self._assembly.duplicates - self._duplicates_told)
        self._duplicates_told = self._assembly.duplicates
        counted, self.tally = self.tally, Tally()
        return counted

    def _arrive(self, delivery: Delivery, step: int) -> Group | None:
        rollout = delivery.event
        if not isinstance(rollout, Rollout):
            self._reject(delivery, delivery.invalid or "it is not a rollout")
            return None
        fault = self._fault(rollout, step)
        if fault is not None:
            self._reject(delivery, fault)
            return None
        return self._assembly.add(delivery.sequence, rollout)

    def _fault(self, rollout: Rollout, step: int) -> str | None:
        """Why a valid rollout cannot be one of this run; None where it can."""
        if rollout.run != self._run:
            return f"it belongs to run {rollout.run!r}"
        if rollout.greatest_version is not None and rollout.greatest_version >= step:
            return f"it claims weights {rollout.greatest_version}, but the newest are {step - 1}"
        if rollout.member >= self._assembly.size:
            return (
                f"it is member {rollout.member} of a group, and a group has {self._assembly.size}: its generator has "
                "another trainer.group_size"
            )
        if rollout.tokens and int(rollout.token_ids().max()) >= self._vocabulary:
            return f"it has token id {int(rollout.token_ids().max())}, and the model has {self._vocabulary} tokens"
        return None

    def _reject(self, delivery: Delivery, reason: str) -> None:
        log.error("rollout at sequence %d is put into DEAD: %s", delivery.sequence, reason)
        self._bury(delivery, reason)
        self._assembly.pass_by(delivery.sequence)

    def _judge(self, group: Group, step: int, ready: dict[int, tuple[TrainedGroup, Group]]) -> None:
        verdict = judge(group, step, self._rules)
        if verdict.close is None:
            ready[group.number] = (verdict.trained, group)
            return
        rollouts = [member.rollout for member in group.in_order()]
        closed = Closed(
            run=self._run,
            group=group.number,
            reason=verdict.close,
            step=step,
            rewards=verdict.trained.rewards,
            env=verdict.trained.env,
            sampled_tokens=sum(rollout.sampled_tokens for rollout in rollouts),
            metrics=group_metrics(rollouts),
        )
        self._close(closed)
        self._assembly.settle(group.number)
        self.tally.closed(closed)

    def _take(self, ready: dict[int, tuple[TrainedGroup, Group]]) -> tuple[list[TrainedGroup], dict[int, Rollout]]:
        chosen = [ready[number] for number in sorted(ready)[: self._groups_per_step]]
        rollouts = {member.sequence: member.rollout for _, group in chosen for member in group.in_order()}
        groups = [trained for trained, _ in chosen]
        for trained in groups:
            self.tally.trained(trained, rollouts)
        return groups, rollouts
