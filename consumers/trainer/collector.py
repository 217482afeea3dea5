"""Collecting a step's batch: pull, validate, assemble, judge, close what teaches nothing, take the oldest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from bus import Logged
from schemas import Closed, Failure, Rollout, TrainedGroup

from .failures import FailureWatch
from .groups import Assembly, Group
from .judgement import Rules, judge
from .tally import Tally, group_metrics

POLL_S = 0.5
"""How long one wait for a rollout lasts before the trainer looks whether it should stop."""
MAX_SEQUENCES = 1024
"""Of one rollout. A step's event names each that it trains, and must stay within a message."""


class Inbox(Protocol):
    """Where rollouts come from: the next, None where none came in time, or BusError where none will come."""

    def get(self, timeout_s: float) -> Logged | None: ...


class Records(Protocol):
    """What decisions are based on and written to."""

    def close(self, closed: Closed) -> None:
        """Append to the ledger that a group is left out, now or soon, before the step that comes next."""
        ...

    def bury(self, logged: Logged, reason: str) -> None:
        """Put an unusable message of ROLLOUTS into DEAD."""
        ...

    def issued_groups(self) -> int:
        """How many groups TASKS has issued so far; 0 too where a run has no dispatcher."""
        ...

    def rollout_at(self, sequence: int) -> Logged | None:
        """The message at ``sequence`` of ROLLOUTS; None where it is gone."""
        ...


class Collector:
    """Holds what has arrived and is not settled, across steps."""

    def __init__(
        self,
        inbox: Inbox,
        assembly: Assembly,
        rules: Rules,
        records: Records,
        *,
        run: str,
        groups_per_step: int,
        vocabulary: int,
    ) -> None:
        self._inbox = inbox
        self._assembly = assembly
        self._rules = rules
        self._records = records
        self._run = run
        self._groups_per_step = groups_per_step
        self._vocabulary = vocabulary
        self._issued = 0
        self._without_tasks = False
        self._duplicates_told = 0
        self._waited_s = 0.0
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
        while len(ready) < self._groups_per_step or self._drop_unissued(ready):
            began = time.monotonic()
            delivery = self._inbox.get(POLL_S)
            self._waited_s += time.monotonic() - began
            idle()
            if delivery is not None and (completed := self._arrive(delivery, step)) is not None:
                self._failures.take(completed)
                self._judge(completed, step, ready)
        return self._take(ready)

    def take_waited_s(self) -> float:
        """Seconds for which ``collect`` has waited for rollouts, since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

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

    def _arrive(self, delivery: Logged, step: int) -> Group | None:
        rollout = delivery.event
        if not isinstance(rollout, Rollout):
            self._reject(delivery, delivery.invalid or "it is not a rollout")
            return None
        fault = self._fault(rollout)
        if fault is not None:
            self._reject(delivery, fault)
            return None
        defect = self._defect(rollout, step)
        if defect is not None:
            self._records.bury(delivery, defect)
            # Its place is taken all the same, by a failure: a group that waited for it would be open for ever.
            rollout = refused(rollout, defect)
        return self._assembly.add(delivery.sequence, rollout)

    def _fault(self, rollout: Rollout) -> str | None:
        """Why a valid rollout has no place in a group of this run; None where it has one."""
        if rollout.member >= self._assembly.size:
            return (
                f"it is member {rollout.member} of a group, and a group has {self._assembly.size}: its generator has "
                "another trainer.group_size"
            )
        if self._never_issued(rollout.group):
            return self._unissued(rollout.group)
        return None

    def _defect(self, rollout: Rollout, step: int) -> str | None:
        """Why what was sampled for a group of this run cannot be used; None where it can."""
        if rollout.greatest_version is not None and rollout.greatest_version >= step:
            return f"it claims weights {rollout.greatest_version}, but the newest are {step - 1}"
        if (fault := _unpredicted(rollout)) is not None:
            return fault
        if len(rollout.starts) >= MAX_SEQUENCES:
            return f"it has {len(rollout.starts) + 1} training sequences, more than {MAX_SEQUENCES}"
        if rollout.tokens and (greatest := int(rollout.token_ids().max())) >= self._vocabulary:
            return f"it has token id {greatest}, and the model has {self._vocabulary} tokens"
        return None

    def _never_issued(self, group: int) -> bool:
        """Whether it is certain that nobody was asked to play ``group``: TASKS had no such group after its rollout.

        Nothing is certain while TASKS is empty: rollouts are published into a new run without any (replay).
        """
        if group >= self._issued and not self._without_tasks:
            self._issued = self._records.issued_groups()
            self._without_tasks = self._issued == 0
        return group >= self._issued and not self._without_tasks

    def _drop_unissued(self, ready: dict[int, tuple[TrainedGroup, Group]]) -> bool:
        """Put into DEAD what came while TASKS was empty and is now known to be of no group.

        Returns whether too few are ready after that.
        """
        self._without_tasks = False
        for group in self._assembly.beyond(self._issued):
            if self._never_issued(group.number):
                for member in group.members.values():
                    if (logged := self._records.rollout_at(member.sequence)) is not None:
                        self._reject(logged, self._unissued(group.number))
                self._assembly.drop(group.number)
                ready.pop(group.number, None)
        return len(ready) < self._groups_per_step

    def _unissued(self, group: int) -> str:
        return f"it is of group {group}, which was never issued: TASKS ends with group {self._issued - 1}"

    def _reject(self, logged: Logged, reason: str) -> None:
        self._records.bury(logged, reason)
        self._assembly.pass_by(logged.sequence)

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
        self._records.close(closed)
        self._assembly.settle(group.number)
        self.tally.closed(closed)

    def _take(self, ready: dict[int, tuple[TrainedGroup, Group]]) -> tuple[list[TrainedGroup], dict[int, Rollout]]:
        chosen = [ready[number] for number in sorted(ready)[: self._groups_per_step]]
        rollouts = {member.sequence: member.rollout for _, group in chosen for member in group.in_order()}
        groups = [trained for trained, _ in chosen]
        for trained in groups:
            self.tally.trained(trained, rollouts)
        return groups, rollouts


def _unpredicted(rollout: Rollout) -> str | None:
    """Why the first training sequence has nothing that its first reply could be predicted from; None where it has.

    The others begin with context: an event is not valid otherwise.
    """
    turns = rollout.turns[: rollout.starts[0]] if rollout.starts else rollout.turns
    first = next((turn for turn in turns if turn.context or turn.sampled), None)
    if first is None:
        return "its first training sequence is empty" if rollout.starts else None
    return None if first.context else "its first token was sampled, with nothing before it"


def refused(rollout: Rollout, reason: str) -> Rollout:
    """A member whose rollout cannot be used, as one that has failed: nothing of it is trained or counted as reward."""
    return msgspec.structs.replace(
        rollout, tokens=b"", logprobs=b"", turns=[], starts=[], spans=[], metrics={}, reward=None,
        error=Failure(kind="refused", message=reason),
    )  # fmt: skip
