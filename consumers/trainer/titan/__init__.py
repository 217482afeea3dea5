"""torchtitan: the model, its optimizer, schedule and checkpoints. The only place that imports it.

``Learner`` loads torch and torchtitan when it is first asked for, not with this door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .learner import Learner

__all__ = ["Learner"]


def __getattr__(name: str) -> object:
    if name == "Learner":
        from .learner import Learner

        return Learner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
