"""torchtitan: the model, its optimizer, schedule and checkpoints. The only place that imports it.

``Learner`` and ``CheckpointUnusable`` load torch and torchtitan when they are first asked for, not with this door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoints import CheckpointUnusable
    from .learner import Learner

__all__ = ["CheckpointUnusable", "Learner"]


def __getattr__(name: str) -> object:
    if name == "Learner":
        from .learner import Learner

        return Learner
    if name == "CheckpointUnusable":
        from .checkpoints import CheckpointUnusable

        return CheckpointUnusable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
