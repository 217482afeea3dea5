"""Settings of the supervisor: the ``[supervisor]`` table of the run configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas import Positive
from schemas.settings import Settings

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class SupervisorSettings(Settings, frozen=True, kw_only=True):
    """``[supervisor]``: how ``headrace up`` restarts and stops the roles."""

    quick_deaths: Positive = 3
    """A role that dies so many times in a row, each time soon after its start, ends the run: restarting won't help."""
    quick_death_s: Seconds = 60.0
    """A death within so many seconds of the start is a quick one; a role that lived longer starts counting anew."""
    stop_grace_s: Seconds = 5.0
    """Time that roles have to end by themselves before they are killed; all must be gone within 10 s of SIGINT."""
