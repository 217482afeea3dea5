"""What a role does at its end with ``--stay``: nothing, until it is stopped.

A container with the restart policy ``unless-stopped`` is started again however it ended. That is right after a crash,
and wrong for a role whose run is finished, or that was fenced. Such a role replaces itself with this module, which
loads the standard library alone, so that the engines' memory is free. It keeps the process id, and ends with the
role's own exit code when it is stopped. While it waits it is healthy where the role ended well, and else silent.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from headrace import heartbeat

ENDS = {signal.SIGTERM, signal.SIGINT}


def stay(code: int) -> NoReturn:
    """Become a process that waits, and ends with ``code``."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # one that comes now is kept, over the exec too
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "headrace.stay", str(code)])


def main(code: int) -> int:
    """Wait for a signal. Returns ``code``."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    while signal.sigtimedwait(ENDS, heartbeat.BEAT_S) is None:
        if code == 0:
            heartbeat.beat()
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
