"""Packing: documents of many lengths into few rows, and rows into micro-batches of bounded size.

Pure functions: the same lengths give the same packing, and a step can be taken again from its record.
Shape legend: T tokens of a document, of which N are trained, R rows, L columns.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from .micro_batch import MicroBatch

Packing = list[list[list[int]]]
"""Micro-batches of rows of positions in the list that was packed; as in ``Step.packing``."""

PAD_MULTIPLE = 8
"""Columns are padded to a multiple of this, so that micro-batches have few shapes."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to train, with what belongs to each of its tokens."""

    tokens: npt.NDArray[np.int32]
    """int32 [T]."""
    trained: list[slice]
    """Where the tokens that are trained lie, in order; the first cannot be, for nothing predicts it."""
    exact: bool
    """Whether the very weights that are updated have sampled it all, with no swap in between."""
    logprobs: npt.NDArray[np.float32]
    """float32 [N]: log-probability of each trained token under the policy that sampled it."""
    advantage: float
    """Of every trained token."""


def runs_of(mask_T: npt.NDArray[np.bool_]) -> list[slice]:
    """Where the tokens of a mask, bool [T], lie: one slice for all that follow each other, in order."""
    edges = np.flatnonzero(np.diff(mask_T, prepend=False, append=False)).tolist()
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def tokens_in(runs: Iterable[slice]) -> int:
    """How many tokens the slices hold."""
    return sum(run.stop - run.start for run in runs)


def padded(tokens: int) -> int:
    """``tokens`` rounded up to a multiple of PAD_MULTIPLE."""
    return -(-tokens // PAD_MULTIPLE) * PAD_MULTIPLE


def pack(lengths: Sequence[int], *, row_tokens: int, micro_batch_tokens: int) -> Packing:
    """Pack documents of these lengths: each exactly once, no row above ``row_tokens``.

    Best-fit decreasing: the longest first, each into the fullest row that has room. Rows are then taken
    from the longest on, so that those of a micro-batch are about equally long and little is padding; a
    micro-batch has at most ``micro_batch_tokens`` tokens, padding included, or one row.
    Raises ValueError for a length below 1 or above ``row_tokens``: those are left out before.
    """
    for position, length in enumerate(lengths):
        if not 1 <= length <= row_tokens:
            raise ValueError(f"document {position} has {length} tokens, a row takes 1 to {row_tokens}")
    rows = _fill_rows(lengths, row_tokens)
    used = [sum(lengths[position] for position in row) for row in rows]
    micro_batches: Packing = []
    columns = 0
    for number in sorted(range(len(rows)), key=lambda number: (-used[number], number)):
        if not micro_batches or (len(micro_batches[-1]) + 1) * columns > micro_batch_tokens:
            micro_batches.append([])
            columns = padded(used[number])
        micro_batches[-1].append(rows[number])
    return micro_batches


def packing_metrics(packing: Packing, lengths: Sequence[int]) -> dict[str, float]:
    """Number of documents, and the share of the columns of all micro-batches that is padding."""
    columns = sum(
        len(rows) * padded(max(sum(lengths[position] for position in row) for row in rows)) for rows in packing
    )
    return {"documents": float(len(lengths)), "padding_share": 1 - sum(lengths) / columns}


def _fill_rows(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, row number), sorted
    for position in sorted(range(len(lengths)), key=lambda position: (-lengths[position], position)):
        found = bisect_left(room, (lengths[position], 0))
        if found < len(room):
            free, number = room.pop(found)
        else:
            free, number = row_tokens, len(rows)
            rows.append([])
        rows[number].append(position)
        insort(room, (free - lengths[position], number))
    return rows


def build_micro_batches(packing: Packing, documents: Sequence[Document]) -> list[MicroBatch]:
    """The arrays of each micro-batch of ``packing``, in its order.

    The rows of one micro-batch have the length of the longest, rounded up to a multiple of PAD_MULTIPLE.
    Raises ValueError for a document whose fields disagree in length or whose first token is trained.
    """
    for position, document in enumerate(documents):
        _check(position, document)
    return [_build(rows, documents) for rows in packing]


def _check(position: int, document: Document) -> None:
    trained = tokens_in(document.trained)
    if trained != len(document.logprobs) or (trained and document.trained[-1].stop > len(document.tokens)):
        raise ValueError(
            f"document {position} has {len(document.tokens)} tokens, trains {trained} in {document.trained}, and has "
            f"{len(document.logprobs)} log-probabilities"
        )
    if trained and document.trained[0].start == 0:
        raise ValueError(f"document {position} trains its first token, which nothing predicts")


@lru_cache(maxsize=8)
def _positions(columns: int) -> npt.NDArray[np.int32]:
    return np.arange(columns, dtype=np.int32)


def _build(rows: list[list[int]], documents: Sequence[Document]) -> MicroBatch:
    columns = padded(max(sum(len(documents[position].tokens) for position in row) for row in rows))
    shape = (len(rows), columns)
    batch = MicroBatch(
        tokens_RL=np.empty(shape, np.int32),
        positions_RL=np.empty(shape, np.int32),
        trained_RL=np.empty(shape, np.bool_),
        exact_RL=np.empty(shape, np.bool_),
        advantages_RL=np.empty(shape, np.float32),
        logprobs_RL=np.empty(shape, np.float32),
    )
    for r, row in enumerate(rows):
        start = 0
        for position in row:
            end = start + len(documents[position].tokens)
            _write(batch, r, slice(start, end), documents[position])
            start = end
        _clear(batch, r, slice(start, columns))
        batch.tokens_RL[r, start:] = 0
    return batch


def _write(batch: MicroBatch, r: int, cells: slice, document: Document) -> None:
    # In place, and each document's cells while the processor has them in its cache: packing is mostly moving memory.
    _clear(batch, r, cells)
    batch.tokens_RL[r, cells] = document.tokens
    taken = 0
    for run in document.trained:
        trained = slice(cells.start + run.start, cells.start + run.stop)
        before, taken = taken, taken + run.stop - run.start
        batch.trained_RL[r, trained] = True
        batch.exact_RL[r, trained] = document.exact
        batch.advantages_RL[r, trained] = document.advantage
        batch.logprobs_RL[r, trained] = document.logprobs[before:taken]


def _clear(batch: MicroBatch, r: int, cells: slice) -> None:
    """Cells that nothing trains, at the positions of a document of their own."""
    batch.positions_RL[r, cells] = _positions(batch.tokens_RL.shape[1])[: cells.stop - cells.start]
    for array in (batch.trained_RL, batch.exact_RL, batch.advantages_RL, batch.logprobs_RL):
        array[r, cells] = 0
