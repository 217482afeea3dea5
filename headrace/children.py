"""Child processes that do not outlive us: their own session, and death with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def tied_to(parent: int) -> Callable[[], None]:
    """A ``preexec_fn``: the kernel kills the child when ``parent``, its spawning thread's process, ends.

    Linux only; elsewhere a child of a SIGKILLed parent is left over. Must be used from the main thread: the
    kernel counts the end of the spawning thread.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def tie() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before the tie was made
                os._exit(1)

    return tie


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that ``pid`` leads; nothing happens when it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
