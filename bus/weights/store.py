"""What a weights store does, wherever it keeps them; and what an announced location says."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from schemas import Weights, WeightsError

from .delta import Delta

FILE = "model.safetensors"
"""Name of the weights in the folder that ``fetch`` returns; engines look for it."""
Payload = bytes | bytearray | memoryview
Stays = Callable[[int], bool]
"""Whether a version is never pruned, however old."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Durable weights, as their event announces them."""

    sha256: str
    location: str
    size_bytes: int


class WeightsStore(Protocol):
    """Versions of a run's weights, each under the sha256 of its bytes. One process writes, any number fetch.

    Nothing here blocks the event loop: hashing, reading and writing of files go on in threads.
    """

    async def put(self, payload: Payload, *, version: int, sha256: str | None = None) -> Stored:
        """Make ``payload`` durable as ``version``, and mend it where it was damaged. Returns what to announce.

        ``sha256``: that of ``payload``, where the caller has computed it already.
        Raises WeightsError where it is refused.
        """
        ...

    async def put_delta(self, delta: Delta, *, version: int) -> Stored:
        """Make durable what makes ``version`` of an earlier one; returns what to announce: the whole weights.

        The same twice is the same as once. Raises WeightsError where it is refused.
        """
        ...

    async def fetch(self, weights: Weights) -> Path:
        """A folder with ``model.safetensors``, its size and sha256 verified; made of deltas where ``base`` is set.

        Raises WeightsError where the weights are not there, pruned, damaged, or not what was announced.
        """
        ...

    async def versions(self) -> dict[int, str]:
        """Version to sha256 of all that were put and not pruned, oldest first."""
        ...

    async def prune(self) -> list[int]:
        """Remove all but the newest versions (``weights.keep``; 0 keeps all), those that stay, and what makes them.

        Returns the removed versions. What is being read stays readable to its end.
        """
        ...


def none_stays(version: int) -> bool:
    """Only the newest versions are kept."""
    return False


def kept_versions(versions: dict[int, str], keep: int, stays: Stays) -> dict[int, str]:
    """What of ``versions``, oldest first, is left by pruning: the ``keep`` newest (0: all), and those that stay."""
    newest = list(versions)[-keep:]
    return {version: sha256 for version, sha256 in versions.items() if version in newest or stays(version)}


def needed(kept: Iterable[str], whole: Collection[str], bases: Mapping[str, str]) -> set[str]:
    """``kept`` and what they are made of, back to whole files: all by their sha256.

    ``whole``: what is there as a whole file. ``bases``: of each delta that is there, from what it makes to its base.
    """
    found: set[str] = set()
    for sha256 in kept:
        while sha256 not in found:
            found.add(sha256)
            if sha256 in whole or sha256 not in bases:
                break
            sha256 = bases[sha256]
    return found


def announced_sha256(weights: Weights, place: str, what: str) -> str:
    """The sha256 in the location of ``weights``, which must be ``place`` followed by it: ``file:``, for example.

    ``what``: name of the weights in messages. Raises WeightsError where it is of another store or another file.
    """
    sha256 = weights.location.removeprefix(place)
    if not weights.location.startswith(place) or not _SHA256.fullmatch(sha256):
        raise WeightsError(
            f"{what}: location {weights.location!r} is not of this store: expected {place}<sha256> (weights.store)"
        )
    if sha256 != weights.sha256:
        raise WeightsError(f"{what}: the location names {sha256}, the event {weights.sha256}: do not use them")
    return sha256


def is_sha256(name: str) -> bool:
    """Whether ``name`` is one in hexadecimal: the name under which weights lie."""
    return _SHA256.fullmatch(name) is not None
