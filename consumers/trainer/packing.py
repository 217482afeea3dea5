"""Packing: documents of many lengths into few rows, and rows into micro-batches of bounded size.

Pure functions: the same lengths give the same packing, and a step can be taken again from its record.
Shape legend: T tokens of a document, R rows, L columns.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

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
    trained: npt.NDArray[np.bool_]
    """bool [T]: which tokens are trained; the first cannot be, for nothing predicts it."""
    exact: bool
    """Whether the very weights that are updated have sampled it all, with no swap in between."""
    logprobs: npt.NDArray[np.float32]
    """float32 [T]: log-probability under the policy that sampled the token; 0 where not sampled."""
    advantage: float
    """Of every trained token."""


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
    Raises ValueError for a document whose arrays disagree in length or whose first token is trained.
    """
    for position, document in enumerate(documents):
        _check(position, document)
    return [_build(rows, documents) for rows in packing]


def _check(position: int, document: Document) -> None:
    n = len(document.tokens)
    if len(document.trained) != n or len(document.logprobs) != n:
        raise ValueError(
            f"document {position} has {n} tokens, {len(document.trained)} mask entries and "
            f"{len(document.logprobs)} log-probabilities"
        )
    if n and document.trained[0]:
        raise ValueError(f"document {position} trains its first token, which nothing predicts")


def _build(rows: list[list[int]], documents: Sequence[Document]) -> MicroBatch:
    columns = padded(max(sum(len(documents[position].tokens) for position in row) for row in rows))
    shape = (len(rows), columns)
    batch = MicroBatch(
        tokens_RL=np.zeros(shape, np.int32),
        positions_RL=np.zeros(shape, np.int32),
        trained_RL=np.zeros(shape, np.bool_),
        exact_RL=np.zeros(shape, np.bool_),
        advantages_RL=np.zeros(shape, np.float32),
        logprobs_RL=np.zeros(shape, np.float32),
    )
    positions = np.arange(columns, dtype=np.int32)
    for r, row in enumerate(rows):
        start = 0
        for position in row:
            document = documents[position]
            end = start + len(document.tokens)
            # In place: an array more for each of these costs as much as decoding the rollout.
            batch.tokens_RL[r, start:end] = document.tokens
            batch.positions_RL[r, start:end] = positions[: end - start]
            batch.trained_RL[r, start:end] = document.trained
            if document.exact:
                batch.exact_RL[r, start:end] = document.trained
            np.copyto(batch.advantages_RL[r, start:end], document.advantage, where=document.trained)
            np.copyto(batch.logprobs_RL[r, start:end], document.logprobs, where=document.trained)
            start = end
        batch.positions_RL[r, start:] = positions[: columns - start]
    return batch
