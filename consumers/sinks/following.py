"""Reading a stream for as long as a sink is wanted, and then what the log still has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from bus import Bus, Logged
from schemas import StreamSpec


async def following(bus: Bus, spec: StreamSpec, stop: asyncio.Event, *, start: int = 1) -> AsyncIterator[Logged]:
    """Messages of a stream from sequence ``start``, as they come.

    After ``stop`` is set, those that the log already has are still given; then it ends. So a sink that is
    stopped at the end of a run has seen all of it.
    """
    following_on = bus.read(spec, start=start, follow=True)
    stopping = asyncio.ensure_future(stop.wait())
    coming: asyncio.Future[Logged] | None = None
    try:
        while not stop.is_set():
            coming = asyncio.ensure_future(anext(following_on))
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                break
            logged = coming.result()
            start = logged.sequence + 1
            yield logged
    finally:
        stopping.cancel()
        if coming is not None and not coming.done():
            coming.cancel()
            # A message that comes in this moment is read again below: ``start`` has not moved past it.
            await asyncio.wait({coming})
        if isinstance(following_on, AsyncGenerator):
            await following_on.aclose()
    async for logged in bus.read(spec, start=start):
        yield logged
