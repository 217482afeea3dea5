"""Attention within documents, for rows that hold several.

Shape legend: R rows, L columns, N heads, H head dimension.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl
from torch.nn.attention.flex_attention import BlockMask

from . import device  # noqa: F401

# isort: split
from torchtitan.models.common.attention import FlexAttention, VarlenAttention
from torchtitan.protocols.module import Module
from torchtitan.tools.utils import get_cuda_flash_attention_impl

log = logging.getLogger("headrace.trainer")


class PackedAttention(FlexAttention):  # type: ignore[misc]  # torchtitan ships no types
    """Inner attention of a torchtitan layer on the CPU: scaled dot products under a mask.

    torchtitan has none that trains there: FlexAttention has no CPU backward, varlen attention needs CUDA. It is one of
    the first kind to torchtitan's context parallelism, which gathers keys and values before it, and to its tensor
    parallelism, which knows the arguments by their names.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        """Nothing to set."""

    def __init__(self, config: Config) -> None:
        Module.__init__(self)

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: torch.Tensor,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """attention_masks: additive, as ``packed_mask`` makes it. Returns [R, L, N, H]."""
        out_RNLH = F.scaled_dot_product_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            attn_mask=attention_masks,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out_RNLH.transpose(1, 2)


def packed_mask(positions_RL: torch.Tensor) -> torch.Tensor:
    """float32 [R, 1, L, L]: 0 where a token sees another, -inf elsewhere.

    A token sees itself and the tokens before it in its own document; a document starts where the position is 0.
    Additive, because the CPU kernel would turn a boolean mask into this form again in every layer.
    """
    columns = positions_RL.shape[1]
    document_RL = torch.cumsum(positions_RL == 0, dim=1)
    same_RLL = document_RL.unsqueeze(2) == document_RL.unsqueeze(1)
    visible_RLL = same_RLL & torch.ones(columns, columns, dtype=torch.bool, device=positions_RL.device).tril()
    mask_RLL = torch.zeros(visible_RLL.shape, device=positions_RL.device)
    return mask_RLL.masked_fill_(~visible_RLL, float("-inf")).unsqueeze(1)


def own_rows(mask: BlockMask, own: slice) -> BlockMask:
    """What the queries in the columns ``own`` see of all keys, for FlexAttention; ``own`` begins and ends with a block.

    The rows of the whole mask's blocks. torchtitan's cp_shard makes them anew with a function that is compiled for each
    shape, of which PyTorch's limit allows eight (not run on a GPU yet).
    """
    block = mask.BLOCK_SIZE[0]
    blocks = slice(own.start // block, own.stop // block)
    # A tensor, because attention would be compiled once for every number.
    begin = torch.tensor(own.start, dtype=torch.int32, device=mask.kv_indices.device)
    whole_mask_mod = mask.mask_mod

    def mask_mod(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return whole_mask_mod(row, head, query + begin, key)

    partly, full = (mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)
    numbers, indices = (each[:, :, blocks].contiguous() for each in partly)
    full_numbers, full_indices = (None if each is None else each[:, :, blocks].contiguous() for each in full)
    return BlockMask.from_kv_blocks(
        numbers,
        indices,
        full_numbers,
        full_indices,
        BLOCK_SIZE=mask.BLOCK_SIZE,
        mask_mod=mask_mod,
        seq_lengths=(own.stop - own.start, mask.seq_lengths[1]),
    )


class BuiltInAttention(VarlenAttention):  # type: ignore[misc]
    """torchtitan's attention over packed rows, by the FlashAttention 2 that is part of PyTorch.

    torchtitan's own asks for FlashAttention 3 on Hopper and 4 on Blackwell, which are packages of their own. The rest
    of it goes by what is active, and PyTorch's is where nothing else was activated (not run on a GPU yet).
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):  # type: ignore[misc]
        """As torchtitan's."""

    def __init__(self, config: Config) -> None:
        Module.__init__(self)
        self.window_size = config.window_size


def varlen_attention() -> Any:
    """The configuration of the inner attention on a GPU: by the FlashAttention for it, where that is installed."""
    wanted = get_cuda_flash_attention_impl()
    if wanted is None or current_flash_attention_impl() == wanted:
        return VarlenAttention.Config()
    try:
        activate_flash_attention_impl(wanted)  # once, here: then torchtitan's layers find it active
    except (ImportError, RuntimeError) as error:
        log.warning(
            "attention is computed by PyTorch's own FlashAttention 2: %s, faster on this GPU, is not there (%s)",
            wanted, error,
        )  # fmt: skip
        return BuiltInAttention.Config()
    return VarlenAttention.Config()
