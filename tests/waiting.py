"""Waiting for a condition with a deadline: the only way in which a test waits for another process or thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 30.0


async def eventually(holds: Callable[[], Awaitable[bool]], *, deadline_s: float = DEADLINE_S) -> None:
    """Return when ``holds``. Raises TimeoutError where it does not within ``deadline_s``."""
    async with asyncio.timeout(deadline_s):
        while not await holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.02)


def until(holds: Callable[[], bool]) -> None:
    """As ``eventually``, where there is no event loop. Raises AssertionError."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)
