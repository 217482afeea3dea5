"""Who waits for an answer to what: so that a refusal, or the loss of the connection, ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from schemas import BusError


class Waiting:
    """Waits under way, by subject. The server says subjects in lower case when it refuses one."""

    def __init__(self) -> None:
        self._troubles: dict[str, dict[asyncio.Future[Any], str]] = {}

    @contextmanager
    def for_answer(self, subject: str) -> Iterator[asyncio.Future[Any]]:
        """A future that gets an exception where the answer will not come within the block; else it stays pending."""
        trouble: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        troubles = self._troubles.setdefault(subject.lower(), {})
        troubles[trouble] = subject
        try:
            yield trouble
        finally:
            del troubles[trouble]
            if not troubles and self._troubles.get(subject.lower()) is troubles:
                del self._troubles[subject.lower()]
            if not trouble.cancel() and not trouble.cancelled():
                trouble.exception()  # Taken note of, so that asyncio does not complain about it.

    def refuse(self, subject: str, denial: Callable[[str], BusError]) -> bool:
        """End the waits for ``subject``, each with the ``denial`` of it as it was spelled. Whether there were any."""
        troubles = self._troubles.get(subject.lower(), {})
        for trouble, spelled in troubles.items():
            if not trouble.done():
                trouble.set_exception(denial(spelled))
        return bool(troubles)

    def end(self, error: BusError) -> None:
        """End all waits with ``error``."""
        for troubles in self._troubles.values():
            for trouble in troubles:
                if not trouble.done():
                    trouble.set_exception(error)
