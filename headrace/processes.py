"""Processes of this machine, as Linux shows them in /proc."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Condition = Literal["runs", "stopped", "gone"]
PROC = Path("/proc")


def condition(pid: int) -> Condition:
    """``stopped``: by a signal, as Ctrl-Z or SIGSTOP, until another one lets it go on."""
    match _stat(pid):
        case None | ("Z", _):
            return "gone"
        case ("T" | "t", _):
            return "stopped"
    return "runs"


def children(pid: int) -> list[int]:
    """Processes that ``pid`` has started and that are still there."""
    others = (int(path.name) for path in PROC.iterdir() if path.name.isdecimal())
    return [other for other in others if (stat := _stat(other)) is not None and stat[1] == pid]


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent of a process; None where there is none. Source: proc_pid_stat(5)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name before may hold anything, parentheses and spaces too.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)
