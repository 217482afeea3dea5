"""A process's heartbeat as the age of a file, for who looks at it from outside: the health check of a container.

The environment variable HEADRACE_HEARTBEAT names the file; without it there is none. `python -m headrace.heartbeat`
exits 0 while the file is fresh. It loads the standard library alone: it is run every few seconds beside the engines.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FILE = "HEADRACE_HEARTBEAT"
BEAT_S = 2.0
SILENT_AFTER_S = 20.0
"""Long enough for the pauses of a process that works: vLLM alone holds its event loop for seconds when it starts."""


def beat() -> None:
    """One beat. Its folder is made: it lies on a file system that is empty at each start."""
    if name := os.environ.get(FILE):
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


async def keep_beating(is_well: Callable[[], bool]) -> None:
    """Beat until cancelled, but not while this process is not well."""
    import asyncio  # Half of the time that a check takes, which needs none of it.

    while True:
        if is_well():
            beat()
        await asyncio.sleep(BEAT_S)


def silent_s(now: float) -> float | None:
    """Seconds without a beat at ``now``, seconds since the epoch; None where there never was one."""
    try:
        return now - Path(os.environ.get(FILE, "")).stat().st_mtime
    except OSError:
        return None


def main() -> int:
    """Say how it stands; returns 1 where the process is silent."""
    if not os.environ.get(FILE):
        print(f"{FILE} names no file")
        return 1
    silence_s = silent_s(time.time())
    print("no heartbeat yet" if silence_s is None else f"last heartbeat {silence_s:.0f} s ago")
    return 0 if silence_s is not None and silence_s <= SILENT_AFTER_S else 1


if __name__ == "__main__":
    sys.exit(main())
