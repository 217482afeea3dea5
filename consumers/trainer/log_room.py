"""How full ROLLOUTS is, and how many more steps fit: a full stream holds up every generator."""

from __future__ import annotations

import msgspec

from bus import StreamState

WARN_AT, WARN_EVERY = 0.8, 0.05
"""Shares of the stream's limit: from the first on it is worth saying, and again at each further such share."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What ROLLOUTS holds of what it may hold."""

    used: float
    """Share of its limit."""
    steps_left: float
    """Steps whose rollouts still fit, each as large as the mean of those so far; at least 0."""

    @property
    def gauges(self) -> dict[str, float]:
        """As telemetry publishes it."""
        return {"log_used": self.used, "log_steps_left": self.steps_left}

    def words(self) -> str | None:
        """For people, where it becomes scarce; None before."""
        if self.used < WARN_AT:
            return None
        return (
            f"ROLLOUTS holds {100 * self.used:.0f} % of its limit: about {self.steps_left:.0f} more steps fit, and "
            "then generators wait. End the run, raise log.max_gib and go on: headrace up applies it, for another "
            "server run headrace topology apply"
        )


def room(state: StreamState, *, limit_bytes: int, committed: int) -> Room | None:
    """The room in ROLLOUTS after step ``committed``; None before there is anything to reckon with.

    What retention has purged counts as what is there: messages are taken to be of one mean size.
    """
    if not committed or not state.messages:
        return None
    step_bytes = state.bytes / state.messages * state.last_sequence / committed
    return Room(used=state.bytes / limit_bytes, steps_left=max(0.0, (limit_bytes - state.bytes) / step_bytes))


class RoomWatch:
    """Speaks up as the stream fills: once at WARN_AT, then at each further WARN_EVERY."""

    def __init__(self) -> None:
        self._next = WARN_AT

    def news(self, room: Room) -> str | None:
        """What is to be said now; None where it was said, or there is room."""
        if room.used < self._next:
            return None
        while self._next <= room.used:
            self._next += WARN_EVERY
        return room.words()
