"""Finding a rollout, a group or a step in a run's log."""

from __future__ import annotations

from bus import Bus, Logged
from schemas import LEDGER, ROLLOUTS, Rollout, RunError, Step

from .readable import ranges


async def find_group(bus: Bus, group: int) -> list[Logged]:
    """The rollouts that count for a group's members, in member order: of several for one, the first.

    Raises RunError that says which groups there are.
    """
    members: dict[int, Logged] = {}
    nearest: int | None = None
    async for logged in bus.read(ROLLOUTS, kinds=(Rollout,)):
        assert isinstance(logged.event, Rollout)
        other = logged.event.group
        if other == group:
            members.setdefault(logged.event.member, logged)
        elif nearest is None or abs(other - group) < abs(nearest - group):
            nearest = other
    if members:
        return [members[member] for member in sorted(members)]
    if nearest is None:
        raise RunError(f"run {bus.run!r} has no rollouts yet: see headrace tail {bus.run}")
    raise RunError(f"run {bus.run!r} has no rollout of group {group}; the nearest group is {nearest}")


async def find_member(bus: Bus, group: int, member: int) -> Logged:
    """The rollout that counts for a member. Raises RunError that says which members there are."""
    rollouts = await find_group(bus, group)
    numbers = []
    for logged in rollouts:
        assert isinstance(logged.event, Rollout)
        if logged.event.member == member:
            return logged
        numbers.append(logged.event.member)
    raise RunError(
        f"run {bus.run!r} has no rollout {group}/{member}; the members of group {group} are {ranges(numbers)}"
    )


async def find_step(bus: Bus, number: int) -> Logged:
    """A committed step. Raises RunError that says which there are."""
    numbers = []
    async for logged in bus.read(LEDGER, kinds=(Step,)):
        assert isinstance(logged.event, Step)
        if logged.event.number == number:
            return logged
        numbers.append(logged.event.number)
    if not numbers:
        raise RunError(f"run {bus.run!r} has committed no step yet: see headrace tail {bus.run}")
    raise RunError(f"run {bus.run!r} has no step {number}; it has committed {ranges(numbers)}")
