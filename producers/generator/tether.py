"""Ties vLLM's processes to the generator: they die when it is killed, whatever the signal.

vLLM ends its engine core and workers when the front process stops in an orderly way; after a SIGKILL they can live on
with all their memory. vLLM calls ``tie_to_parent`` in each of its processes (entry point ``vllm.general_plugins``).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

FRONT = "HEADRACE_TETHER"
"""Environment variable: process id of the generator. Without it nothing is tied."""
_PR_SET_PDEATHSIG = 1


def tie_to_parent() -> None:
    """Have the kernel kill this process when its parent goes; end at once when the parent has gone already.

    Does nothing in the generator itself, where the plugin is loaded too, and in a vLLM that we did not start. The
    signal follows the *thread* that started the process (prctl(2), PR_SET_PDEATHSIG): VllmEngine keeps that thread.
    """
    front = os.environ.get(FRONT)
    parent = multiprocessing.parent_process()
    if front is None or front == str(os.getpid()) or parent is None or not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that died before the call sends no signal; then we have been handed to another one.
    if os.getppid() != parent.pid:
        os.kill(os.getpid(), signal.SIGKILL)
