"""Deltas of weights files: exact whatever the bits, compact where little changed, refused where damaged."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from bus import Delta, make_delta
from bus.weights import delta as module
from bus.weights.delta import MAGIC, Block, DeltaHeader, apply_deltas
from schemas import WeightsError

BLOCK = 300
"""Items of a block in these tests: gaps of more than 255 fit into one."""
ODD_BITS = (0x0000, 0x8000, 0x7F80, 0xFF80, 0x7F81, 0xFFFF, 0x0001, 0x3F80)
"""In bfloat16: 0.0, -0.0, infinities, NaNs with payloads, the least subnormal, 1.0."""


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks of BLOCK items; and any delta is worth its while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ITEMS", BLOCK)
        patch.setattr(Delta, "MOST", 1000.0)
        yield


def sha256(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def made(base: bytes, new: bytes, item_bytes: int = 2) -> Delta:
    with small_blocks():
        delta = make_delta(base, new, base_sha256=sha256(base), sha256=sha256(new), item_bytes=item_bytes)  # type: ignore[arg-type]
    assert delta is not None
    return delta


def applied(base: bytes, *deltas: Delta) -> bytes:
    return b"".join(bytes(piece) for piece in apply_deltas(memoryview(base), deltas))


def random_file(items: int, item_bytes: int = 2, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(items * item_bytes)


def changed(base: bytes, positions: list[int]) -> bytes:
    """``base`` with the bfloat16 at each position one step up."""
    items = np.frombuffer(base, "<u2").copy()
    items[positions] += np.uint16(1)
    return items.tobytes()


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, bytes, int]:
    """Two files of one size, and the bytes of their items."""
    item_bytes = draw(st.sampled_from([2, 4]))
    count = draw(st.integers(1, 4 * BLOCK))
    base = np.frombuffer(random_file(count, item_bytes, draw(st.integers(0, 99))), f"<u{item_bytes}").copy()
    new = base.copy()
    values = st.one_of(st.sampled_from(ODD_BITS), st.integers(0, 256**item_bytes - 1))
    places = st.integers(0, count - 1)
    for items in (base, new):
        for place, value in draw(st.dictionaries(places, values, max_size=20)).items():
            items[place] = value
    if draw(st.booleans()):
        new = new[::-1].copy()
    return base.tobytes(), new.tobytes(), item_bytes


@settings(deadline=None)
@given(files())
def test_what_comes_of_the_base_is_equal_bit_for_bit(case: tuple[bytes, bytes, int]) -> None:
    base, new, item_bytes = case
    assert applied(base, made(base, new, item_bytes)) == new


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4 * BLOCK - 1), max_size=5), min_size=1, max_size=5))
def test_a_chain_is_applied_in_one_go(steps: list[list[int]]) -> None:
    versions = [random_file(4 * BLOCK)]
    for step in steps:
        versions.append(changed(versions[-1], sorted(set(step))))
    deltas = [made(base, new) for base, new in pairwise(versions)]
    assert applied(versions[0], *deltas) == versions[-1]


@settings(deadline=None)
@given(files())
def test_the_same_files_give_the_same_bytes(case: tuple[bytes, bytes, int]) -> None:
    assert made(*case).payload == made(*case).payload


@pytest.mark.parametrize("share", [0.004, 0.03])
def test_a_step_up_or_down_takes_little_more_than_its_place(share: float) -> None:
    random = np.random.default_rng(0)
    base = random.integers(0, 2**16, 2_500_000, dtype=np.uint16)
    new = base.copy()
    new[random.random(len(new)) < share] += np.uint16(1)
    delta = make_delta(base.tobytes(), new.tobytes(), base_sha256="0" * 64, sha256="1" * 64, item_bytes=2)
    assert delta is not None
    bits = 8 * len(delta.payload) / np.count_nonzero(new != base)
    assert bits < np.log2(1 / share) + 3
    assert applied(base.tobytes(), delta) == new.tobytes()


def test_where_all_has_changed_there_is_no_delta() -> None:
    base, new = random_file(100_000, seed=1), random_file(100_000, seed=2)
    assert make_delta(base, new, base_sha256="0" * 64, sha256="1" * 64, item_bytes=2) is None


@pytest.mark.parametrize("size", [999, 1001, 1002])
def test_files_of_other_sizes_have_no_delta(size: int) -> None:
    assert make_delta(bytes(1000), bytes(size), base_sha256="0" * 64, sha256="1" * 64, item_bytes=2) is None


def test_a_file_that_is_no_row_of_items_has_no_delta() -> None:
    assert make_delta(bytes(1001), bytes(1001), base_sha256="0" * 64, sha256="1" * 64, item_bytes=2) is None


BASE = random_file(3 * BLOCK + 7)
NEW = changed(BASE, [0, 5, BLOCK - 1, BLOCK, 3 * BLOCK, 3 * BLOCK + 6])
GOOD = made(BASE, NEW)


@settings(deadline=None)
@given(st.integers(0, len(GOOD.payload) - 1), st.integers(1, 255))
def test_any_changed_byte_is_found(place: int, difference: int) -> None:
    damaged = bytearray(GOOD.payload)
    damaged[place] ^= difference
    with pytest.raises(WeightsError, match=r"^delta 7 (is damaged: its sha256|is no delta of weights)"):
        Delta.read(bytes(damaged), "delta 7")


@settings(deadline=None)
@given(st.integers(0, len(GOOD.payload) - 1))
def test_a_lost_end_is_found(size: int) -> None:
    with pytest.raises(WeightsError, match=r"^delta 7 is (damaged|no delta)"):
        Delta.read(GOOD.payload[:size], "delta 7")


def forged(header: bytes, body: bytes = b"") -> bytes:
    """A delta whose own digest is right, whatever else it says."""
    rest = len(header).to_bytes(4, "little") + header + body
    return MAGIC + hashlib.sha256(rest).digest() + rest


def header(**fields: object) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(GOOD.header, **fields))


@pytest.mark.parametrize(
    ("words", "encoded"),
    [
        ("header that cannot be used: ", b"{"),
        ("header that cannot be used: ", b"\xff"),
        ("header that cannot be used: .*base", header(base="../etc")),
        ("header that cannot be used: .*size_bytes", header(size_bytes=-2)),
        ("header that cannot be used: .*block_items", header(block_items=0)),
        ("header that cannot be used: .*block_items", header(block_items=2**40)),
        ("header that cannot be used: .*item_bytes", header(item_bytes=8)),
        ("header that cannot be used: .*blocks", header(blocks=[Block(0, -1, 1)] * 4)),
        ("sizes that do not fit together", header(size_bytes=2**60)),
        ("sizes that do not fit together", header(size_bytes=1801)),
        ("sizes that do not fit together", header(blocks=[Block(0, 0, 0)] * 3)),
        ("sizes that do not fit together", header(blocks=[Block(1, 8, 8)] + [Block(0, 0, 0)] * 3)),
    ],
)
def test_a_header_that_cannot_be_is_refused(words: str, encoded: bytes) -> None:
    with pytest.raises(WeightsError, match=f"^delta 7 has (a )?{words}"):
        Delta.read(forged(encoded), "delta 7")


def one_block(changed: int, gaps: bytes, differences: bytes) -> Delta:
    """A delta of one block whose streams hold these bytes."""
    streams = [zlib.compress(gaps), zlib.compress(differences)]
    block = Block(changed, len(streams[0]), len(streams[1]))
    told = DeltaHeader(
        base="0" * 64, sha256="1" * 64, size_bytes=2 * BLOCK, item_bytes=2, block_items=BLOCK, blocks=[block]
    )
    return Delta.read(forged(msgspec.json.encode(told), b"".join(streams)), "delta 7")


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("changes that do not fit", (1, b"\x00\x00", b"\x02\x00")),
        ("changes that do not fit", (2, b"\x00", b"\x02\x00\x00\x00")),
        ("changes that do not fit", (1, bytes([255, 45]), b"\x02\x00")),
        ("changes that do not fit", (1, bytes([0, 255]), b"\x02\x00")),
        ("changes that do not fit", (1, b"\x00", b"\x02")),
        ("positions have another length", (1, bytes(10**6), b"\x02\x00")),
        ("differences have another length", (1, b"\x00", bytes(10**6))),
    ],
)
def test_changes_outside_their_block_are_refused(words: str, changes: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(WeightsError, match=f"block 0 of the delta that makes weights 111111111111.* {words}"):
        applied(bytes(2 * BLOCK), one_block(*changes))


def test_a_stream_that_is_none_is_refused() -> None:
    told = msgspec.structs.replace(one_block(1, b"\x00", b"\x02\x00").header, blocks=[Block(1, 4, 4)])
    with pytest.raises(WeightsError, match="positions cannot be read"):
        applied(bytes(2 * BLOCK), Delta.read(forged(msgspec.json.encode(told), b"nonsense"), "delta 7"))


def test_deltas_that_are_no_chain_are_refused() -> None:
    again = made(BASE, changed(BASE, [1]))
    with pytest.raises(WeightsError, match="are no chain"):
        applied(BASE, GOOD, again)


def test_a_base_of_another_size_is_refused() -> None:
    with pytest.raises(WeightsError, match="are of other sizes"):
        applied(BASE[:-2], GOOD)
