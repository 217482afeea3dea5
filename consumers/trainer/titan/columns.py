"""Context parallelism: the columns of each row divided over ranks, and what they find put together again.

Every rank of such a group holds the whole micro-batch and passes its own columns through the model; attention gathers
the keys and values of all. Then all have the log-probabilities of all trained tokens, each with the gradient of its
own, so that a loss may look at whole documents.

Shape legend: R rows, L columns, C columns of this rank, N trained tokens, M of those whose source is in own columns.
"""

# ruff: noqa: N815  # shapes are in names

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from .attention import own_rows
from .device import ON_CPU
from .device_batch import DeviceBatch
from .world import World

BLOCK = 1 if ON_CPU else 128
"""Columns of a rank are a multiple of this: masks of FlexAttention are made of blocks (not run on a GPU yet)."""


class Columns(NamedTuple):
    """What one rank passes through the model."""

    tokens_RC: torch.Tensor
    positions_RC: torch.Tensor
    masks: Any
    """Of attention from own columns to all."""
    sources_M: torch.Tensor
    """int64: flat index, in own columns, of the token before each trained one."""
    own_M: torch.Tensor
    """int64: which of the N trained tokens these are."""


def own_columns(batch: DeviceBatch, world: World, masks_of: Callable[[torch.Tensor], Any]) -> Columns:
    """The part of ``batch`` that this rank computes; all of it without context parallelism.

    masks_of: masks of attention from positions [R, L].
    """
    if world.context_parallel == 1:
        every_N = torch.arange(len(batch.sources_N), device=world.device)
        return Columns(batch.tokens_RL, batch.positions_RL, masks_of(batch.positions_RL), batch.sources_N, every_N)
    columns = batch.tokens_RL.shape[1]
    width = -(-columns // (world.context_parallel * BLOCK)) * BLOCK
    tokens_RL, positions_RL = _padded(batch, width * world.context_parallel - columns)
    begin = width * world.context_rank
    own = slice(begin, begin + width)
    masks = masks_of(positions_RL)
    masks = masks[:, :, own] if isinstance(masks, torch.Tensor) else own_rows(masks, own)
    rows_N, columns_N = batch.sources_N // columns, batch.sources_N % columns
    own_M = ((columns_N >= own.start) & (columns_N < own.stop)).nonzero()[:, 0]
    sources_M = rows_N[own_M] * width + columns_N[own_M] - begin
    return Columns(tokens_RL[:, own], positions_RL[:, own], masks, sources_M, own_M)


def _padded(batch: DeviceBatch, more: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and positions with ``more`` columns of padding, which are documents of their own.

    None is longer than the row was: there may be more padding than positions that the model has.
    """
    columns = batch.positions_RL.shape[1]
    positions_RL = F.pad(batch.positions_RL, (0, more))
    positions_RL[:, columns:] = torch.arange(more, device=positions_RL.device) % columns
    return F.pad(batch.tokens_RL, (0, more)), positions_RL


def put_together(values_M: torch.Tensor, own_M: torch.Tensor, total: int, world: World) -> torch.Tensor:
    """[N] on every rank of a group: the values of all, with the gradient of own ones."""
    if world.context_parallel == 1:
        return values_M
    found_N = torch.zeros(total, dtype=values_M.dtype, device=values_M.device)
    found_N[own_M] = values_M.detach()
    world.sum_context(found_N)
    return found_N.index_copy(0, own_M, values_M)
