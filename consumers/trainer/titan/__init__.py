"""torchtitan: the model, its optimizer, schedule and checkpoints. The only place that imports it.

``Learner`` and ``Lockstep`` load torch and torchtitan when they are first asked for, not with this door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .learner import Learner
    from .lockstep import Lockstep

__all__ = ["Learner", "Lockstep"]


def __getattr__(name: str) -> object:
    if name == "Learner":
        from .learner import Learner

        return Learner
    if name == "Lockstep":
        from .lockstep import Lockstep

        return Lockstep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
