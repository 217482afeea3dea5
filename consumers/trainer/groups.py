"""Rollouts become groups again: by (group, member), first in log order, whatever order they come in."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import msgspec

from schemas import Rollout


class Member(msgspec.Struct, frozen=True):
    """A rollout and its position in ROLLOUTS."""

    sequence: int
    """From 1."""
    rollout: Rollout


class Group(msgspec.Struct):
    """The members of one group that have arrived."""

    number: int
    size: int
    """Members that it has when complete."""
    members: dict[int, Member] = {}
    """By their number in the group."""

    @property
    def complete(self) -> bool:
        """Whether all members have arrived."""
        return len(self.members) == self.size

    def in_order(self) -> list[Member]:
        """[M] members by their number; the group must be complete."""
        return [self.members[number] for number in range(self.size)]


class Assembly:
    """Groups that have begun to arrive and are not settled, and the mark below which everything is.

    A group is settled when a step trained it or it was closed. Duplicates of a settled group stay duplicates
    for good, however late they come.
    """

    def __init__(self, size: int, settled: set[int] | None = None, *, last_sequence: int = 0) -> None:
        """Begin to read after ``last_sequence``.

        ``size``: members of a group. ``settled``: numbers of the groups that the ledger has trained or closed. Of
        such a group, each member's first appearance is what an earlier trainer took, and no duplicate.
        """
        self.size = size
        """Members of a group."""
        self._settled = set() if settled is None else set(settled)
        self._settled_before = frozenset(self._settled)
        self._read_again: set[tuple[int, int]] = set()
        self._groups: dict[int, Group] = {}
        self._lowest_open = next(number for number in itertools.count() if number not in self._settled)
        self._last_sequence = last_sequence
        self.seen = 0
        """Rollouts taken in, duplicates included."""
        self.duplicates = 0

    def pass_by(self, sequence: int) -> None:
        """A message that cannot be used lies at ``sequence``."""
        self._last_sequence = max(self._last_sequence, sequence)

    def add(self, sequence: int, rollout: Rollout) -> Group | None:
        """Take in a rollout of a member below ``size``; returns its group if this was the one that completed it."""
        self.pass_by(sequence)
        self.seen += 1
        if rollout.group in self._settled:
            member = (rollout.group, rollout.member)
            if rollout.group in self._settled_before and member not in self._read_again:
                self._read_again.add(member)
            else:
                self.duplicates += 1
            return None
        group = self._groups.setdefault(rollout.group, Group(rollout.group, self.size))
        if rollout.member in group.members:
            self.duplicates += 1
            return None
        group.members[rollout.member] = Member(sequence, rollout)
        return group if group.complete else None

    def settle(self, number: int) -> None:
        """Group ``number`` is trained or closed."""
        self._groups.pop(number, None)
        self._settled.add(number)
        while self._lowest_open in self._settled:
            self._lowest_open += 1

    def beyond(self, number: int) -> list[Group]:
        """Groups that are not settled, from ``number`` on."""
        return [group for group in self._groups.values() if group.number >= number]

    def drop(self, number: int) -> None:
        """Forget what has arrived of group ``number``: it cannot be used, and the mark passes it."""
        self._groups.pop(number, None)

    @property
    def lowest_open(self) -> int:
        """All groups below this number are settled."""
        return self._lowest_open

    def complete(self) -> list[Group]:
        """Complete groups that are not settled, lowest number first."""
        return sorted((group for group in self._groups.values() if group.complete), key=lambda group: group.number)

    @property
    def held(self) -> int:
        """Rollouts that have arrived and are not settled."""
        return sum(len(group.members) for group in self._groups.values())

    def low_water(self, settling: Collection[int] = ()) -> int:
        """Everything in ROLLOUTS up to this sequence is settled, once the groups ``settling`` are too.

        A restarted trainer begins to read after it.
        """
        unsettled = [
            member.sequence
            for group in self._groups.values()
            if group.number not in settling
            for member in group.members.values()
        ]
        return min(unsettled) - 1 if unsettled else self._last_sequence
