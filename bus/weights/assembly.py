"""Fetching weights of which a store may have only what changed: from a base that is at hand, over deltas.

Each delta names its base by digest, so they are a chain that needs no list. What comes of it is used only with the
sha256 that the log announced: so no damage of a base or of a delta, and no wrong delta, can get through.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bus.threads import in_thread
from schemas import Weights, WeightsError

from .cache import Cache
from .delta import Delta, apply_deltas
from .disk import mapped, reason
from .store import FILE

log = logging.getLogger("headrace.bus")


class Shelf(Protocol):
    """What a store has. All sha256 are those of whole files."""

    def at_hand(self, sha256: str, size_bytes: int) -> Path | None:
        """A folder of this machine, or one that it sees, with the whole file; not verified."""
        ...

    async def has_whole(self, sha256: str) -> bool:
        """Whether the whole file can be had from farther away."""
        ...

    async def whole(self, sha256: str, size_bytes: int, what: str) -> Path:
        """A folder with the whole file, verified. Raises WeightsError, naming it ``what``, where there is none."""
        ...

    async def delta(self, sha256: str, most_bytes: int, what: str) -> Delta | None:
        """What makes that file of another one, valid; None where there is none, or one of more bytes.

        Raises WeightsError, naming it ``what``, where it is damaged.
        """
        ...


class Route(msgspec.Struct, frozen=True):
    """How to come by weights."""

    base: str
    """sha256 of the whole file to begin with."""
    deltas: Sequence[Delta]
    """Oldest first. None where the base is what is wanted."""


class Assembly:
    """One fetch of weights. What is damaged is set aside, and another way tried while there is one."""

    def __init__(self, weights: Weights, shelf: Shelf, cache: Cache) -> None:
        self._weights = weights
        self._what = f"weights {weights.version}"
        self._shelf = shelf
        self._cache = cache
        self._avoided: set[str] = set()
        """sha256 of files that cannot be a base."""
        self._faults: list[WeightsError] = []

    async def fetch(self) -> Path:
        """A folder with the weights, verified. Raises WeightsError, with what was met first, where no way leads there.

        What is made of deltas is put into the cache.
        """
        while (route := await self._route()) is not None:
            if self._faults:
                log.warning("%s are fetched in another way: %s", self._what, self._faults[-1])
            try:
                return await self._take(route)
            except WeightsError as error:
                self._faults.append(error)
                await in_thread(self._set_aside, route.base)
        raise self._faults[0]

    async def _route(self) -> Route | None:
        """From the nearest base at hand; or else from the whole file on the store that needs the fewest deltas.

        Where nothing is found, the weights themselves are asked for, so that the store says why they are not there.
        """
        wanted, size_bytes = self._weights.sha256, self._weights.size_bytes
        current, deltas, left, farther = wanted, list[Delta](), int(Delta.MOST * size_bytes), None
        while self._weights.base is not None:
            if current not in self._avoided:
                if self._shelf.at_hand(current, size_bytes) is not None:
                    return Route(current, deltas[::-1])
                if farther is None and await self._shelf.has_whole(current):
                    farther = Route(current, deltas[::-1])
            if farther is not None and self._cache.is_empty:
                break
            if (delta := await self._delta(current, left)) is None:
                break
            left -= len(delta.payload)
            deltas.append(delta)
            current = delta.header.base
        return farther or (None if wanted in self._avoided else Route(wanted, []))

    async def _delta(self, sha256: str, most_bytes: int) -> Delta | None:
        """What makes that file, where there is a delta that can be used."""
        what, size_bytes = f"the delta that makes {sha256[:12]}, for {self._what},", self._weights.size_bytes
        try:
            delta = await self._shelf.delta(sha256, most_bytes, what)
            if delta is not None and (delta.header.sha256, delta.header.size_bytes) != (sha256, size_bytes):
                made = f"{delta.header.sha256[:12]} of {delta.header.size_bytes} bytes"
                raise WeightsError(f"{what} makes {made} instead: it is not used")
        except WeightsError as error:
            self._faults.append(error)
            return None
        return delta

    async def _take(self, route: Route) -> Path:
        size_bytes = self._weights.size_bytes
        if not route.deltas:
            return await self._shelf.whole(route.base, size_bytes, self._what)
        base = self._shelf.at_hand(route.base, size_bytes)
        if base is None:
            base = await self._shelf.whole(route.base, size_bytes, f"weights {route.base[:12]}, base of {self._what},")
        return await in_thread(self._make, base / FILE, route)

    def _make(self, base: Path, route: Route) -> Path:
        what = f"{self._what}, made of {route.base[:12]} by {len(route.deltas)} deltas,"
        try:
            with (
                mapped(base) as view,
                self._cache.new(self._weights.sha256, self._weights.size_bytes, what) as file,
            ):
                file.take(apply_deltas(view, route.deltas))
                file.finish()
        except OSError as error:
            raise WeightsError(f"{what} are not there: {base} cannot be read: {reason(error)}") from error
        return self._cache.trim(self._weights.sha256)

    def _set_aside(self, base: str) -> None:
        """After a route from ``base`` that failed: it leaves the cache where it is damaged there, or is not used."""
        size_bytes = self._weights.size_bytes
        if self._cache.holds(base, size_bytes) and self._cache.find(base, size_bytes) is None:
            self._cache.drop(base)
        else:
            self._avoided.add(base)
