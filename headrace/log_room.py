"""How full a run's ROLLOUTS is, as its trainer's gauges tell it."""

from __future__ import annotations

from consumers.trainer import Room

from .view import RunView


def room_of(view: RunView) -> Room:
    """Empty before the trainer has told it; ``Room.words`` is what status and progress say where it is scarce."""
    return Room(used=view.gauge("trainer", "log_used"), steps_left=view.gauge("trainer", "log_steps_left"))
