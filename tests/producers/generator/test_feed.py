"""The weights feed where versions are deltas: damage is told, waited out, and never used."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, FileWeights, Ledger, make_delta
from producers.generator import WeightsFeed
from schemas import Weights
from tests.waiting import eventually

PAYLOADS = [bytes(4096), bytes(4092) + b"this", bytes(4092) + b"that"]
DIGESTS = [hashlib.sha256(payload).hexdigest() for payload in PAYLOADS]


class Mill:
    """A trainer that announces PAYLOADS, version by version, as deltas from the second on."""

    def __init__(self, connect_as: Any, folder: Path) -> None:
        self.connect_as, self.folder = connect_as, folder
        self.store = FileWeights(folder, 0)

    async def announce(self, version: int, *, damaged: bool = False) -> None:
        if version == 0:
            self.bus: Bus = await self.connect_as("trainer")
            self.ledger = Ledger(self.bus, "trainer")
            await self.ledger.open()
            await self.put(0)
        else:
            base, new = PAYLOADS[version - 1 : version + 1]
            delta = make_delta(base, new, base_sha256=DIGESTS[version - 1], sha256=DIGESTS[version], item_bytes=4)
            assert delta is not None
            await self.store.put_delta(delta, version=version)
        if damaged:
            (file,) = (self.folder / "deltas").glob(f"{DIGESTS[version]}.*")
            file.write_bytes(b"damaged")
        await self.ledger.append(
            Weights(
                run=self.bus.run,
                version=version,
                sha256=DIGESTS[version],
                size_bytes=4096,
                location=f"file:{DIGESTS[version]}",
                dtype="float32",
                base=version - 1 if version else None,
            )
        )

    async def put(self, version: int) -> None:
        await self.store.put(PAYLOADS[version], version=version)

    @asynccontextmanager
    async def feed(self) -> AsyncIterator[WeightsFeed]:
        cache = self.folder / "generator"
        feed = WeightsFeed(await self.connect_as("generator"), FileWeights(self.folder, 0, cache=cache))
        following = asyncio.create_task(feed.follow())
        yield feed
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.fixture
def mill(connect_as: Any, tmp_path: Path) -> Mill:
    return Mill(connect_as, tmp_path)


async def check(feed: WeightsFeed, version: int) -> None:
    fetched = await feed.next()
    assert fetched.weights.version == version
    assert (fetched.folder / "model.safetensors").read_bytes() == PAYLOADS[version]
    assert feed.missing is None


async def test_a_version_is_made_of_the_one_before(mill: Mill) -> None:
    await mill.announce(0)
    async with mill.feed() as feed:
        await check(feed, 0)
        await mill.announce(1)
        await check(feed, 1)


async def test_who_joins_late_makes_the_newest_alone(mill: Mill) -> None:
    for version in range(3):
        await mill.announce(version)
    async with mill.feed() as feed:
        await check(feed, 2)
    assert [path.name for path in (mill.folder / "generator").iterdir()] == [DIGESTS[2]]


async def test_what_cannot_be_made_is_told_until_it_is_put_whole(mill: Mill) -> None:
    await mill.announce(0)
    async with mill.feed() as feed:
        await check(feed, 0)
        await mill.announce(1, damaged=True)
        waiting = asyncio.create_task(check(feed, 1))

        async def told() -> bool:
            return feed.missing == 1

        await eventually(told)
        assert not waiting.done()
        await mill.put(1)
        await waiting


async def test_a_newer_version_that_can_be_made_ends_the_waiting(mill: Mill) -> None:
    await mill.announce(0)
    async with mill.feed() as feed:
        await check(feed, 0)
        await mill.announce(1, damaged=True)
        waiting = asyncio.create_task(check(feed, 2))

        async def told() -> bool:
            return feed.missing == 1

        await eventually(told)
        await mill.announce(2)
        await mill.put(2)
        await waiting
