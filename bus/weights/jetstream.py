"""Weights in NATS: an object-store bucket, so trainer and generators share nothing else.

Each whole file lies under its sha256, and what makes it of another one under ``<sha256>.delta``. The versions that
have it are in metadata and description, for programs and for ``nats object ls <run>_weights``; so is a delta's base.
"""

from __future__ import annotations

from pathlib import Path

from bus.threads import in_thread
from schemas import Weights, WeightsError

from .assembly import Assembly
from .bucket import Bucket
from .cache import Cache
from .delta import Delta
from .disk import sha256_of_bytes
from .objects import ObjectInfo, sha256_in
from .reading import read_object
from .sending import label_object, put_object
from .store import Payload, Stays, Stored, announced_sha256, is_sha256, kept_versions, needed, none_stays

DELTA = ".delta"


class JetStreamWeights:
    """A WeightsStore in ``bucket``."""

    def __init__(self, bucket: Bucket, keep: int, cache: Path, stays: Stays = none_stays) -> None:
        """``keep``: how many of the newest versions ``prune`` leaves, besides those that ``stays``; 0 keeps all.

        ``cache``: folder in which fetched weights lie; no other process may use it.
        """
        self._bucket = bucket
        self._keep = keep
        self._stays = stays
        self._cache = Cache(cache)

    @property
    def _place(self) -> str:
        return f"jetstream:{self._bucket.name}/"

    async def put(self, payload: Payload, *, version: int, sha256: str | None = None) -> Stored:
        """See WeightsStore. The same again is not sent again where all of it is there.

        A server that is away, or a full bucket, is waited for, with a log line each 10 s.
        Raises WeightsError or BusError where waiting cannot help.
        """
        view = memoryview(payload).cast("B")
        digest: str = await in_thread(sha256_of_bytes, view) if sha256 is None else sha256
        await put_object(self._bucket, digest, view, digest, versions=await self._sharing(digest, digest, version))
        return Stored(sha256=digest, location=f"{self._place}{digest}", size_bytes=view.nbytes)

    async def put_delta(self, delta: Delta, *, version: int) -> Stored:
        """See WeightsStore. A server that is away, or a full bucket, is waited for as ``put`` does."""
        view, header = memoryview(delta.payload), delta.header
        name, digest = f"{header.sha256}{DELTA}", await in_thread(sha256_of_bytes, view)
        versions = await self._sharing(name, header.sha256, version)
        await put_object(self._bucket, name, view, digest, versions=versions, base=header.base)
        return Stored(sha256=header.sha256, location=f"{self._place}{header.sha256}", size_bytes=header.size_bytes)

    async def _sharing(self, name: str, sha256: str, version: int) -> frozenset[int]:
        """``version``, and those that have these weights already."""
        known = {} if await self._bucket.info(name) is None else await self.versions()
        return frozenset({each for each, has in known.items() if has == sha256} | {version})

    async def fetch(self, weights: Weights) -> Path:
        """See WeightsStore. What lies in the cache, and is still what it should be, is not read again.

        A server that is away is waited for, with a log line each 10 s.
        """
        announced_sha256(weights, self._place, f"weights {weights.version}")
        return await Assembly(weights, self, self._cache).fetch()

    def at_hand(self, sha256: str, size_bytes: int) -> Path | None:
        """See Shelf."""
        return self._cache.folder(sha256) if self._cache.holds(sha256, size_bytes) else None

    async def has_whole(self, sha256: str) -> bool:
        """See Shelf."""
        return await self._bucket.info(sha256) is not None

    async def delta(self, sha256: str, most_bytes: int, what: str) -> Delta | None:
        """See Shelf."""
        info = await self._bucket.info(f"{sha256}{DELTA}")
        if info is None or info.size > most_bytes:
            return None
        pieces: list[bytes] = []
        await read_object(self._bucket, info, pieces.extend)
        return await in_thread(lambda: Delta.read(b"".join(pieces), what))

    async def whole(self, sha256: str, size_bytes: int, what: str) -> Path:
        """See Shelf."""
        if (folder := await in_thread(self._cache.find, sha256, size_bytes)) is not None:
            return folder
        info = await self._bucket.info(sha256)
        if info is None:
            raise WeightsError(
                f"{what} are not in {self._bucket.name}: they were pruned (weights.keep is {self._keep}): take a "
                "newer version, or raise weights.keep"
            )
        if info.size != size_bytes or sha256_in(info.digest) != sha256:
            raise WeightsError(
                f"{what} were announced with {size_bytes} bytes and sha256 {sha256}, {self._bucket.name} has "
                f"{info.size} bytes with {info.digest}: do not use them"
            )
        with await in_thread(self._cache.new, sha256, info.size, what) as file:
            await read_object(self._bucket, info, file.take)
            await in_thread(file.finish)
        return await in_thread(self._cache.trim, sha256)

    async def versions(self) -> dict[int, str]:
        """See WeightsStore."""
        return _versions(await self._objects())

    async def prune(self) -> list[int]:
        """See WeightsStore. Chunks that are being read go at a later call."""
        objects = await self._objects() if self._keep else []
        versions = _versions(objects)
        kept = kept_versions(versions, self._keep, self._stays)
        stay = needed(
            kept.values(),
            {info.name for info in objects if not info.base},
            {_makes(info): info.base for info in objects if info.base},
        )
        for info in objects:
            if _makes(info) in stay:
                having = frozenset(version for version, sha256 in kept.items() if sha256 == _makes(info))
                await label_object(self._bucket, info, having)
            else:
                await self._bucket.remove(info)
        await self._bucket.sweep()
        return [version for version in versions if version not in kept]

    async def _objects(self) -> list[ObjectInfo]:
        return [info for info in await self._bucket.objects() if is_sha256(_makes(info))]


def _makes(info: ObjectInfo) -> str:
    """sha256 of the whole file that an object is, or that its delta makes."""
    return info.name.removesuffix(DELTA)


def _versions(objects: list[ObjectInfo]) -> dict[int, str]:
    """Version to sha256; where a version was put anew, the later one counts."""
    found = {version: _makes(info) for info in objects for version in info.versions}
    return dict(sorted(found.items()))
