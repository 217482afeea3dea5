"""Finding a rollout, a group or a step in a run's log."""

from __future__ import annotations

from bus import Bus, Logged, StreamState
from schemas import LEDGER, ROLLOUTS, Closed, Rollout, RunError, Step

from .readable import ranges


async def find_group(bus: Bus, group: int) -> list[Logged]:
    """The rollouts that count for a group's members, in member order: of several for one, the first.

    Raises RunError that says which groups there are, and what was purged.
    """
    state = await bus.state(ROLLOUTS)
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
    if nearest is None and not state.last_sequence:
        raise RunError(f"run {bus.run!r} has no rollouts yet: see headrace tail {bus.run}")
    known = "" if nearest is None else f"; the nearest group is {nearest}"
    raise RunError(f"run {bus.run!r} has no rollout of group {group}{known}{_purged(state)}")


def _purged(state: StreamState) -> str:
    if state.first_sequence <= 1:
        return ""
    return f' (log.keep = "checkpoints": rollouts up to sequence {state.first_sequence - 1} were purged)'


async def find_member(bus: Bus, group: int, member: int) -> Logged:
    """The rollout that counts for a member. Raises RunError that says which members there are, and what was purged."""
    rollouts = await find_group(bus, group)
    numbers = []
    for logged in rollouts:
        assert isinstance(logged.event, Rollout)
        if logged.event.member == member:
            return logged
        numbers.append(logged.event.member)
    raise RunError(
        f"run {bus.run!r} has no rollout {group}/{member}; the members of group {group} are {ranges(numbers)}"
        f"{_purged(await bus.state(ROLLOUTS))}"
    )


async def fate_of(bus: Bus, group: int) -> Step | Closed | None:
    """The step that trained a group, or why it was left out; None where that is open."""
    async for logged in bus.read(LEDGER, kinds=(Step, Closed)):
        match logged.event:
            case Step() as step if any(each.group == group for each in step.groups):
                return step
            case Closed() as closed if closed.group == group:
                return closed
    return None


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
