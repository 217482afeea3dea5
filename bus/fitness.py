"""Whether a server can carry a run."""

from __future__ import annotations

import asyncio
import time

from schemas import ServerUnfit, ServerUnreachable

from .answers import ApiError, Unanswered
from .wire import Wire

OLDEST_SERVER = (2, 14)
"""Consumers can be reset since 2.14; many messages come in one direct get since 2.11."""
_NO_JETSTREAM = (10039, 10076)


async def require_fit_server(wire: Wire, *, timeout_s: float) -> None:
    """Raise ServerUnfit where the server is too old or has no JetStream, ServerUnreachable where that gives no answer.

    The second may pass by itself: a server that is stopped for a while, a cluster without a leader.
    """
    _check_version(wire)
    deadline = time.monotonic() + timeout_s
    while True:  # A cluster may still be electing a leader.
        try:
            await wire.api("INFO")
            return
        except Unanswered as error:
            off, reason = error.no_responders, str(error)
        except ApiError as error:
            off, reason = error.fault.err_code in _NO_JETSTREAM, str(error)
        where = wire.address.url
        if off:
            raise ServerUnfit(
                f"the NATS server at {where} runs without JetStream for {wire.address.identity} "
                f"({reason}): start it with -js, or enable it for the account"
            )
        if time.monotonic() >= deadline:
            raise ServerUnreachable(f"JetStream at {where} gives no answer ({reason}): look at the server's log")
        await asyncio.sleep(0.1)


def _check_version(wire: Wire) -> None:
    version = wire.server_version
    if version[:2] < OLDEST_SERVER:
        raise ServerUnfit(
            f"the NATS server at {wire.address.url} has version {'.'.join(map(str, version))}: "
            f"Headrace needs {'.'.join(map(str, OLDEST_SERVER))} or newer"
        )
