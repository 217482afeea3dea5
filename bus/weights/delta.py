"""What changed from one weights file to the next, exactly: which items, and by how much.

    8 bytes    ``hrdelta1``
    32 bytes   sha256 of all that follows
    4 bytes    length of the header, little-endian
    header     JSON: see DeltaHeader
    blocks     for each block of the file with a change: positions, then differences, each a zlib stream

Both files are rows of unsigned little-endian items (2 bytes for bfloat16, 4 for float32), their safetensors headers
included. Position and difference are integers, so what comes out is equal bit for bit, whatever the items mean: NaNs
with a payload, and -0.0.

- Positions are gaps, the unchanged items before each changed one. A gap is as many bytes of 255 as it has 255s, and
  one byte with the rest.
- A difference is new less old, modulo two to the power of the item's bits, zigzag (0, -1, 1, -2, ... as 0, 1, 2, 3):
  most of those in bfloat16 are one step up or down. All lowest bytes come first, then the next.

In bfloat16 at a share p of changed items, Huffman coding of both takes about log2(1/p) + 3 bits a change.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import Natural, Sha256, WeightsError

MAGIC = b"hrdelta1"
BLOCK_ITEMS = 1 << 20
"""Items that are looked at together: what they take fits into a processor's cache."""
_LENGTH_BYTES = 4
_PREFIX_BYTES = len(MAGIC) + 32 + _LENGTH_BYTES
_ESCAPE = 255
Items = npt.NDArray[np.unsignedinteger]


class Block(msgspec.Struct, frozen=True, array_like=True):
    """One block that may have changed. Without a change it has no bytes."""

    changed: Natural
    """How many items."""
    positions_bytes: Natural
    differences_bytes: Natural


class DeltaHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a delta says about itself."""

    base: Sha256
    """Of the whole file that it applies to."""
    sha256: Sha256
    """Of the whole file that comes of it."""
    size_bytes: Natural
    """Of both."""
    item_bytes: Literal[2, 4]
    block_items: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    blocks: list[Block]


class Delta:
    """A valid delta: its sizes fit together, and its bytes are as they were written."""

    MOST: ClassVar[float] = 0.5
    """Deltas that together have more than this share of the whole file's bytes are not worth their while."""

    def __init__(self, header: DeltaHeader, payload: bytes, begins: list[int]) -> None:
        """``begins``: where the bytes of each block begin in ``payload``."""
        self.header = header
        self.payload = payload
        self._begins = begins

    @classmethod
    def read(cls, payload: bytes, what: str) -> Delta:
        """Validate ``payload``. Raises WeightsError, naming it ``what``, where it is damaged or no delta."""
        digest, length = payload[len(MAGIC) : len(MAGIC) + 32], payload[_PREFIX_BYTES - _LENGTH_BYTES : _PREFIX_BYTES]
        end = _PREFIX_BYTES + int.from_bytes(length, "little")
        if len(payload) < _PREFIX_BYTES or not payload.startswith(MAGIC):
            raise WeightsError(f"{what} is no delta of weights: it does not begin with {MAGIC.decode()}")
        if hashlib.sha256(memoryview(payload)[len(MAGIC) + 32 :]).digest() != digest:
            raise WeightsError(f"{what} is damaged: its sha256 is not the one that it begins with")
        try:
            header = msgspec.json.decode(payload[_PREFIX_BYTES:end], type=DeltaHeader)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WeightsError(f"{what} has a header that cannot be used: {error}") from None
        begins = [end]
        for block in header.blocks:
            begins.append(begins[-1] + block.positions_bytes + block.differences_bytes)
        items, odd = divmod(header.size_bytes, header.item_bytes)
        blocks = -(-items // header.block_items)
        if odd or len(header.blocks) != blocks or begins[-1] != len(payload):
            raise WeightsError(f"{what} has sizes that do not fit together")
        return cls(header, payload, begins)

    def change(self, number: int, items: Items) -> None:
        """Turn ``items``, block ``number`` of the base, into the new ones. Raises WeightsError where they cannot be."""
        block, begin = self.header.blocks[number], self._begins[number]
        if not block.changed:
            return
        middle, end = begin + block.positions_bytes, begin + block.positions_bytes + block.differences_bytes
        what = f"block {number} of the delta that makes weights {self.header.sha256[:12]}"
        view = memoryview(self.payload)
        gaps = _inflated(view[begin:middle], block.changed + len(items) // _ESCAPE, f"{what}: positions")
        planes = _inflated(view[middle:end], block.changed * items.itemsize, f"{what}: differences")
        positions = _positions(gaps)
        counts = {len(positions), len(planes) // items.itemsize}
        if counts != {block.changed} or gaps[-1] == _ESCAPE or positions[-1] >= len(items):
            raise WeightsError(f"{what} has changes that do not fit into it")
        items[positions] += _differences(planes, items.dtype)


def make_delta(base: bytes, new: bytes, *, base_sha256: str, sha256: str, item_bytes: Literal[2, 4]) -> Delta | None:
    """What turns the file ``base`` into the file ``new``; None where it would not be worth its while.

    That is where they differ in size, or in so much that a whole file is not much larger. The digests are theirs.
    The same arguments give the same bytes. About 0.3 s for 270 MB in which few items changed.
    """
    if len(base) != len(new) or len(new) % item_bytes:
        return None
    kind = _kind(item_bytes)
    old_items, new_items = np.frombuffer(base, kind), np.frombuffer(new, kind)
    blocks, pieces, left = list[Block](), list[bytes](), int(Delta.MOST * len(new))
    for begin in range(0, len(new_items), BLOCK_ITEMS):
        block, streams = _block(old_items[begin : begin + BLOCK_ITEMS], new_items[begin : begin + BLOCK_ITEMS])
        blocks.append(block)
        pieces += streams
        left -= block.positions_bytes + block.differences_bytes
        if left < 0:
            return None
    header = DeltaHeader(
        base=base_sha256, sha256=sha256, size_bytes=len(new), item_bytes=item_bytes, block_items=BLOCK_ITEMS,
        blocks=blocks,
    )  # fmt: skip
    encoded = msgspec.json.encode(header)
    if len(encoded) > left:
        return None
    body = b"".join([len(encoded).to_bytes(_LENGTH_BYTES, "little"), encoded, *pieces])
    return Delta.read(MAGIC + hashlib.sha256(body).digest() + body, "the delta that was made")


def apply_deltas(base: memoryview, deltas: Sequence[Delta]) -> Iterator[memoryview]:
    """The whole file that comes of ``base`` by ``deltas``, oldest first, piece by piece.

    Only a piece is in memory. The result is yet to be verified: that is what shows a base which was not the right one.
    Raises WeightsError where they do not fit together, or one cannot be applied.
    """
    first = deltas[0].header
    for earlier, later in pairwise(deltas):
        if later.header.base != earlier.header.sha256:
            raise WeightsError(f"deltas to {earlier.header.sha256[:12]} and from {later.header.base[:12]} are no chain")
    shapes = {(each.header.size_bytes, each.header.item_bytes, each.header.block_items) for each in deltas}
    if len(shapes) > 1 or base.nbytes != first.size_bytes:
        raise WeightsError(f"weights {first.base[:12]} have {base.nbytes} bytes, their deltas are of other sizes")
    block_bytes = first.block_items * first.item_bytes
    for number in range(len(first.blocks)):
        items = np.frombuffer(base[number * block_bytes :][:block_bytes], _kind(first.item_bytes)).copy()
        for delta in deltas:
            delta.change(number, items)
        yield items.data.cast("B")


def _kind(item_bytes: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"<u{item_bytes}")


def _block(old: Items, new: Items) -> tuple[Block, list[bytes]]:
    positions = np.flatnonzero(old != new)
    if not len(positions):
        return Block(0, 0, 0), []
    differences = new[positions] - old[positions]
    bits = np.array(8 * new.itemsize - 1, new.dtype)
    zigzag = (differences << np.ones((), new.dtype)) ^ (np.zeros((), new.dtype) - (differences >> bits))
    planes = np.ascontiguousarray(zigzag.view(np.uint8).reshape(-1, new.itemsize).T)
    streams = [_deflated(_gaps(positions)), _deflated(planes)]
    return Block(len(positions), *map(len, streams)), streams


def _gaps(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    gaps = np.diff(positions, prepend=-1) - 1
    escapes = gaps // _ESCAPE
    digits = np.full(int(escapes.sum()) + len(gaps), _ESCAPE, np.uint8)
    digits[np.cumsum(escapes + 1) - 1] = gaps % _ESCAPE
    return digits


def _positions(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Of what ``_gaps`` has made."""
    ends = np.flatnonzero(digits != _ESCAPE)
    unchanged = np.cumsum(digits, dtype=np.int64)[ends]
    return unchanged + np.arange(len(ends))


def _differences(planes: npt.NDArray[np.uint8], kind: np.dtype[np.unsignedinteger]) -> Items:
    zigzag = np.ascontiguousarray(planes.reshape(kind.itemsize, -1).T).view(kind)[:, 0]
    one = np.ones((), kind)
    differences: Items = (zigzag >> one) ^ (np.zeros((), kind) - (zigzag & one))
    return differences


def _deflated(array: npt.NDArray[np.uint8]) -> bytes:
    """Huffman codes and runs: what else zlib looks for is not in such bytes, and takes most of its time."""
    deflating = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return deflating.compress(array.data.cast("B")) + deflating.flush()


def _inflated(stream: memoryview, most: int, what: str) -> npt.NDArray[np.uint8]:
    """Never more than ``most`` bytes, however much the stream would give."""
    inflating = zlib.decompressobj()
    try:
        inflated = inflating.decompress(stream, most + 1)
    except zlib.error as error:
        raise WeightsError(f"{what} cannot be read: {error}") from None
    if not inflating.eof or len(inflated) > most or inflating.unused_data:
        raise WeightsError(f"{what} have another length than they should")
    return np.frombuffer(inflated, np.uint8)
