"""Weights of which a store has only what changed: chains, damage and pruning, in a folder and in NATS."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bus import Delta, Stored, WeightsStore, make_delta
from schemas import Weights, WeightsError
from tests.bus.weights.conftest import Backend, InNats, announced

ITEMS = 200_000
STEP = 400
"""Items that change from one version to the next."""


class Chain:
    """A trainer that puts each version as a delta to the one before, or whole, or both."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.random = np.random.default_rng(0)
        self.payloads = [self.random.bytes(2 * ITEMS)]
        self.stored: list[Stored] = []
        self.weights: list[Weights] = []

    async def begin(self) -> None:
        """Version 0, whole."""
        self.stored.append(await self.backend.store.put(self.payloads[0], version=0))
        self.weights.append(announced(self.stored[0], 0))

    async def grow(self, *, whole: bool = False) -> None:
        """One more version."""
        items = np.frombuffer(self.payloads[-1], "<u2").copy()
        items[self.random.choice(ITEMS, STEP, replace=False)] += np.uint16(1)
        self.payloads.append(items.tobytes())
        version, delta = len(self.stored), self.delta(len(self.stored))
        self.stored.append(await self.backend.store.put_delta(delta, version=version))
        if whole:
            assert await self.backend.store.put(self.payloads[-1], version=version) == self.stored[-1]
        delta_bytes = len(delta.payload)
        self.weights.append(
            msgspec.structs.replace(announced(self.stored[-1], version), base=version - 1, delta_bytes=delta_bytes)
        )

    def delta(self, version: int) -> Delta:
        base, new = self.payloads[version - 1 : version + 1]
        delta = make_delta(base, new, base_sha256=sha256(base), sha256=sha256(new), item_bytes=2)
        assert delta is not None
        return delta

    async def check(self, store: WeightsStore, version: int) -> Path:
        """That ``store`` has exactly this version; returns where."""
        folder = await store.fetch(self.weights[version])
        assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
        assert (folder / "model.safetensors").read_bytes() == self.payloads[version]
        return folder


def sha256(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


Grown = Callable[..., Awaitable[Chain]]


@pytest.fixture
def grown(backend: Backend) -> Grown:
    """Makes a chain of as many deltas; of ``whole`` ones the whole file too."""

    async def make(deltas: int, whole: tuple[int, ...] = ()) -> Chain:
        chain = Chain(backend)
        await chain.begin()
        for version in range(1, deltas + 1):
            await chain.grow(whole=version in whole)
        return chain

    return make


async def test_each_version_is_made_of_the_one_before(grown: Grown, backend: Backend) -> None:
    chain, store = await grown(0), await backend.elsewhere()
    await chain.check(store, 0)
    for version in range(1, 5):
        await chain.grow()
        await chain.check(store, version)
        await chain.check(store, version)


async def test_who_is_versions_behind_takes_all_deltas_in_one_go(grown: Grown, backend: Backend) -> None:
    chain, store = await grown(1), await backend.elsewhere()
    await chain.check(store, 1)
    for _ in range(4):
        await chain.grow()
    if isinstance(backend, InNats):
        await backend.lose(chain.stored[0])
    await chain.check(store, 5)


async def test_who_has_nothing_goes_back_to_a_whole_one(grown: Grown, backend: Backend) -> None:
    chain = await grown(4)
    await chain.check(await backend.elsewhere(), 4)


async def test_who_has_nothing_takes_the_newest_whole_one(grown: Grown, backend: Backend) -> None:
    chain = await grown(4, whole=(3,))
    await backend.lose(chain.stored[0])
    await backend.damage_delta(chain.stored[2])
    await chain.check(await backend.elsewhere(), 4)


async def test_who_has_the_base_does_not_read_the_whole_one(grown: Grown, in_nats: InNats) -> None:
    chain = Chain(in_nats)
    await chain.begin()
    store = await in_nats.elsewhere()
    await chain.check(store, 0)
    await chain.grow(whole=True)
    await in_nats.damage(chain.stored[1])
    await chain.check(store, 1)


async def test_a_delta_put_twice_is_there_once(grown: Grown, backend: Backend) -> None:
    chain = await grown(1)
    assert await backend.store.put_delta(chain.delta(1), version=1) == chain.stored[1]
    assert await backend.files() == 2
    assert await backend.store.versions() == {version: each.sha256 for version, each in enumerate(chain.stored)}
    await chain.check(await backend.elsewhere(), 1)


async def test_a_damaged_delta_is_named_and_nothing_is_used(grown: Grown, backend: Backend) -> None:
    chain, store = await grown(2), await backend.elsewhere()
    await backend.damage_delta(chain.stored[1])
    with pytest.raises(
        WeightsError, match=rf"the delta that makes {chain.stored[1].sha256[:12]}, for weights 2, is (dam|no delta)"
    ):
        await store.fetch(chain.weights[2])
    await chain.check(store, 0)


async def test_whole_weights_that_are_put_later_are_found(grown: Grown, backend: Backend) -> None:
    chain, store = await grown(2), await backend.elsewhere()
    await backend.damage_delta(chain.stored[2])
    with pytest.raises(WeightsError, match=r"damaged|no delta"):
        await store.fetch(chain.weights[2])
    await backend.store.put(chain.payloads[2], version=2)
    await chain.check(store, 2)


async def test_a_damaged_base_is_found_by_what_comes_of_it(grown: Grown, backend: Backend) -> None:
    chain, store = await grown(1), await backend.elsewhere()
    await backend.damage(chain.stored[0])
    with pytest.raises(WeightsError, match=r"damaged: its sha256 is [0-9a-f]{64}"):
        await store.fetch(chain.weights[1])


@pytest.mark.parametrize("left", ["the delta", "the whole file"])
async def test_a_base_that_was_damaged_in_the_cache_is_had_again(left: str, grown: Grown, backend: Backend) -> None:
    chain, store = await grown(1), await backend.elsewhere()
    folder = await chain.check(store, 1)
    (folder / "model.safetensors").write_bytes(bytes(2 * ITEMS))
    if left == "the whole file":
        await backend.store.put(chain.payloads[1], version=1)
        await backend.lose(chain.stored[0])
    await chain.grow()
    await chain.check(store, 2)


async def test_a_delta_of_other_weights_is_not_used(grown: Grown, in_nats: InNats) -> None:
    chain = Chain(in_nats)
    await chain.begin()
    await chain.grow()
    await chain.grow()
    info = await in_nats.bucket.info(f"{chain.stored[1].sha256}.delta")
    assert info is not None
    name = f"{chain.stored[2].sha256}.delta"
    await in_nats.store_metadata(name, msgspec.json.encode(msgspec.structs.replace(info, name=name)))
    with pytest.raises(WeightsError, match=f"makes {chain.stored[1].sha256[:12]} of {2 * ITEMS} bytes instead"):
        await (await in_nats.elsewhere()).fetch(chain.weights[2])


async def test_prune_keeps_what_a_kept_version_is_made_of(grown: Grown, backend: Backend) -> None:
    chain = await grown(5)
    assert await backend.store.prune() == [0, 1, 2, 3]
    assert list(await backend.store.versions()) == [4, 5]
    assert await backend.files() == 6
    for version in (4, 5):
        await chain.check(await backend.elsewhere(), version)


async def test_prune_removes_what_lies_behind_a_whole_version(grown: Grown, backend: Backend) -> None:
    chain = await grown(6, whole=(4,))
    assert await backend.store.prune() == [0, 1, 2, 3, 4]
    assert await backend.files() == 4, "whole 4, deltas to 4, 5 and 6"
    assert await backend.store.prune() == []
    for version in (5, 6):
        await chain.check(await backend.elsewhere(), version)


async def test_a_version_that_stays_keeps_its_chain(grown: Grown, backend: Backend) -> None:
    chain = await grown(9, whole=(4, 8))
    backend.store._stays = lambda version: version == 2  # type: ignore[attr-defined]
    await backend.store.prune()
    assert list(await backend.store.versions()) == [2, 8, 9]
    for version in (2, 8, 9):
        await chain.check(await backend.elsewhere(), version)


async def test_a_longer_way_than_half_of_the_whole_is_not_taken(grown: Grown, in_nats: InNats) -> None:
    chain = Chain(in_nats)
    await chain.begin()
    store = await in_nats.elsewhere()
    await chain.check(store, 0)
    while sum(each.delta_bytes or 0 for each in chain.weights) < ITEMS:
        await chain.grow()
    await in_nats.lose(chain.stored[0])
    with pytest.raises(WeightsError, match="were pruned"):
        await store.fetch(chain.weights[-1])
    await in_nats.store.put(chain.payloads[-1], version=len(chain.payloads) - 1)
    await chain.check(store, len(chain.payloads) - 1)
