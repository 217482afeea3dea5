"""Stopping a process that this one has started."""

from __future__ import annotations

import os
import signal


def stop(pid: int) -> None:
    """SIGSTOP, returning when all of its threads have stopped: until then it goes on answering."""
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
