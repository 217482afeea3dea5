"""The archive sink: rollouts as Parquet files, for analysis with other tools.

A file's name says which sequences of ROLLOUTS it covers, ``rollouts-00000001-00004096.parquet``. It is written
aside, synced and renamed, so a file that is there is whole, and a restarted sink goes on after the last one.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bus import Bus, Logged, in_thread
from schemas import ROLLOUTS, Rollout

from .following import following

ROWS_PER_FILE = 4096
BYTES_PER_FILE = 128 * 1024 * 1024
"""Packed arrays held in memory at most, whatever the number of rows."""
_NAME = re.compile(r"rollouts-(\d{8,})-(\d{8,})\.parquet")

SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),  # position in ROLLOUTS
        pa.field("published_at", pa.float64(), nullable=False),  # seconds since the epoch
        pa.field("run", pa.string(), nullable=False),
        pa.field("group", pa.int64(), nullable=False),
        pa.field("member", pa.int32(), nullable=False),
        pa.field("env", pa.string(), nullable=False),
        pa.field("task_index", pa.int64(), nullable=False),
        pa.field("generator", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),  # [T]
        pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),  # [T] true where sampled
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),  # [S] of the sampled tokens, in order
        pa.field("versions", pa.list_(pa.int32()), nullable=False),  # [S] weights that sampled each
        pa.field(
            "turn_lengths", pa.list_(pa.int32()), nullable=False
        ),  # context and sampled tokens of each turn, in turn
        pa.field("starts", pa.list_(pa.int32()), nullable=False),  # turns at which a new training sequence starts
        pa.field("cached", pa.list_(pa.int32()), nullable=False),  # prefix tokens from the cache, each turn
        pa.field("reward", pa.float64()),
        pa.field("error_kind", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("metrics", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("swaps_during", pa.int32(), nullable=False),
        pa.field("started_at", pa.float64(), nullable=False),
        pa.field("total_s", pa.float64(), nullable=False),
        pa.field("sampling_s", pa.float64(), nullable=False),
    ]
)


class Row(msgspec.Struct, frozen=True):
    """A rollout and where it stands in the log."""

    sequence: int
    time: float
    rollout: Rollout


def table(rows: Sequence[Row]) -> pa.Table:
    """One row for each rollout, with the columns of ``SCHEMA``."""
    rollouts = [row.rollout for row in rows]
    columns: dict[str, list[Any]] = {
        "sequence": [row.sequence for row in rows],
        "published_at": [row.time for row in rows],
        "task_index": [rollout.index for rollout in rollouts],
        "tokens": [rollout.token_ids() for rollout in rollouts],
        "loss_mask": [rollout.loss_mask() for rollout in rollouts],
        "logprobs": [rollout.logprob_values() for rollout in rollouts],
        "versions": [rollout.token_versions() for rollout in rollouts],
        "turn_lengths": [[n for turn in rollout.turns for n in (turn.context, turn.sampled)] for rollout in rollouts],
        "starts": [rollout.starts for rollout in rollouts],
        "cached": [[turn.cached for turn in rollout.turns] for rollout in rollouts],
        "error_kind": [rollout.error.kind if rollout.error else None for rollout in rollouts],
        "error_message": [rollout.error.message if rollout.error else None for rollout in rollouts],
        "metrics": [list(rollout.metrics.items()) for rollout in rollouts],
        "started_at": [rollout.timings.started_at for rollout in rollouts],
        "total_s": [rollout.timings.total_s for rollout in rollouts],
        "sampling_s": [rollout.timings.sampling_s for rollout in rollouts],
    }
    for name in ("run", "group", "member", "env", "generator", "attempt", "reward", "swaps_during"):
        columns[name] = [getattr(rollout, name) for rollout in rollouts]
    arrays = [_array(columns[field.name], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not (pa.types.is_list(kind) and values and isinstance(values[0], np.ndarray)):
        return pa.array(values, kind)
    # From the packed arrays at once: a Python object for every token would take seconds.
    arrays = [np.asarray(value) for value in values]
    offsets = np.cumsum([0, *(len(array) for array in arrays)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(arrays), kind.value_type), type=kind)


class Archive:
    """Collects rollouts in log order and writes a file whenever enough have come."""

    def __init__(self, folder: Path, *, rows_per_file: int = ROWS_PER_FILE) -> None:
        self._folder = folder
        self._rows_per_file = rows_per_file
        folder.mkdir(parents=True, exist_ok=True)
        for aside in folder.glob("*.parquet.part"):
            aside.unlink()  # of a sink that was killed while it wrote
        self._first = self._next = resumes_at(folder)
        self._rows: list[Row] = []
        self._bytes = 0

    @property
    def next_sequence(self) -> int:
        """Sequence from which the log is still to be read."""
        return self._next

    @property
    def full(self) -> bool:
        """Whether ``flush`` is due."""
        return len(self._rows) >= self._rows_per_file or self._bytes >= BYTES_PER_FILE

    def add(self, logged: Logged) -> None:
        """Take one message. One that is no valid rollout is passed over: it is among the dead letters, whole."""
        self._next = logged.sequence + 1
        if isinstance(logged.event, Rollout):
            self._rows.append(Row(logged.sequence, logged.time, logged.event))
            self._bytes += len(logged.payload)

    def flush(self) -> Path | None:
        """Write what was collected; returns the new file, or None where no rollout has come since the last one."""
        if not self._rows:
            return None
        path = self._folder / f"rollouts-{self._first:08d}-{self._next - 1:08d}.parquet"
        aside = path.with_suffix(".parquet.part")
        with aside.open("wb") as file:
            pq.write_table(table(self._rows), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        self._first, self._rows, self._bytes = self._next, [], 0
        return path


def resumes_at(folder: Path) -> int:
    """The sequence after the last that a whole file covers; 1 where there is none."""
    covered = [int(match[2]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return max(covered, default=0) + 1


async def run_archive(bus: Bus, folder: Path, stop: asyncio.Event) -> None:
    """Write a run's rollouts to ``folder`` until ``stop`` is set, and then what is left in the log."""
    archive = Archive(folder)
    try:
        async for logged in following(bus, ROLLOUTS, stop, start=archive.next_sequence):
            archive.add(logged)
            if archive.full:
                await in_thread(archive.flush)
    finally:
        archive.flush()
