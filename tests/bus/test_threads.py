"""Threads of our own for files, whatever asyncio's are kept busy with."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bus import in_thread


async def test_threads_that_never_return_do_not_keep_ours_waiting() -> None:
    released = threading.Event()
    hanging = [asyncio.create_task(asyncio.to_thread(released.wait, 60)) for _ in range(64)]  # more than there are
    await asyncio.sleep(0)  # Each has asked for its thread then.
    try:
        async with asyncio.timeout(10):
            assert await in_thread(sum, [1, 2], start=3) == 6
    finally:
        released.set()
        await asyncio.gather(*hanging)


async def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
