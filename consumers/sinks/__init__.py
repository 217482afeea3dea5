"""Who pulls without training: metrics, the archive of rollouts, and dead letters.

Each sink loads when it is first asked for, not with this door: pyarrow alone takes half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .settings import ArchiveSettings, MetricsSettings

if TYPE_CHECKING:
    from .archive import run_archive
    from .dead import run_dead
    from .metrics import run_metrics

__all__ = ["ArchiveSettings", "MetricsSettings", "run_archive", "run_dead", "run_metrics"]


def __getattr__(name: str) -> object:
    if name == "run_archive":
        from .archive import run_archive

        return run_archive
    if name == "run_dead":
        from .dead import run_dead

        return run_dead
    if name == "run_metrics":
        from .metrics import run_metrics

        return run_metrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
