"""Attention on GPUs, as far as a CPU can tell: which kernels are asked for, and what masks say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor.experimental._context_parallel import _attention as torch_context_parallel
from torch.nn.attention import current_flash_attention_impl
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, flex_attention

from consumers.trainer.titan import attention, sharding
from consumers.trainer.titan.attention import BuiltInAttention, own_rows, varlen_attention
from consumers.trainer.titan.model import build_config
from consumers.trainer.titan.world import World
from schemas.model import read_architecture
from tests.consumers.trainer.tiny_models import make_model

# isort: split
from torchtitan.models.common import attention as titan_attention

LOGGER = "headrace.trainer"
Told = Callable[[str | None], None]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Has torchtitan believe that the GPU is one for a FlashAttention of that name; None for older ones."""

    def tell(name: str | None) -> None:
        for place in (attention, "torchtitan.tools.utils"):
            target = place if isinstance(place, str) else place.__name__
            monkeypatch.setattr(f"{target}.get_cuda_flash_attention_impl", lambda: name)

    return tell


@pytest.mark.parametrize("wanted", ["FA3", "FA4"])
def test_a_flash_attention_that_is_not_installed_is_replaced_by_the_built_in_one(
    wanted: str, told: Told, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told(wanted)
    monkeypatch.setattr(sharding, "ON_CPU", False)
    config = build_config(read_architecture(make_model(tmp_path, "qwen3")), max_positions=8)
    with caplog.at_level(logging.WARNING, LOGGER):
        sharding.prepare(config, World(rank=0, size=1, device=torch.device("cuda")))
    assert [f"own FlashAttention 2: {wanted}" in line for line in caplog.messages] == [True], "once, not for each layer"
    with torch.device("meta"):
        built = config.build()
    inner = [layer.attention.inner_attention for layer in built.layers.values()]
    assert {type(each) for each in inner} == {BuiltInAttention}
    assert current_flash_attention_impl() is None
    packed = built.get_attention_masks(torch.tensor([[0, 1, 0, 1, 2]]))
    assert packed.cu_seq_q.tolist() == [0, 2, 5]


def test_the_built_in_attention_calls_the_kernel_as_torchtitan_does(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def kernel(q: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        calls.append((others[2:], named))
        return q

    monkeypatch.setattr(titan_attention, "varlen_attn", kernel)
    told(None)
    theirs = varlen_attention().build()
    told("FA3")
    ours = varlen_attention().build()
    assert (type(theirs), type(ours)) == (titan_attention.VarlenAttention, BuiltInAttention)
    masks = titan_attention.create_varlen_metadata_for_document(torch.tensor([[0, 1, 0, 1, 2]]))
    q_RLNH = torch.randn(1, 5, 4, 8)
    for each in (theirs, ours):
        assert each(q_RLNH, q_RLNH, q_RLNH, attention_masks=masks, scale=0.5, enable_gqa=True).shape == q_RLNH.shape
    assert calls[0] == calls[1]
    assert (calls[1][1]["window_size"], calls[1][1]["num_splits"]) == ((-1, 0), 1)


def test_a_flash_attention_that_is_installed_is_activated_once(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    active: list[str] = []
    monkeypatch.setattr(attention, "activate_flash_attention_impl", active.append)
    for module in (attention, titan_attention):
        monkeypatch.setattr(module, "current_flash_attention_impl", lambda: active[-1] if active else None)
    told("FA3")
    layers = [varlen_attention().build() for _ in range(2)]
    assert [type(layer) for layer in layers] == [titan_attention.VarlenAttention] * 2
    assert active == ["FA3"]
    assert caplog.messages == []


def whole_mask(positions_RL: torch.Tensor) -> BlockMask:
    """As torchtitan's models make it, but for the compilation."""
    rows, columns = positions_RL.shape
    documents = titan_attention.get_efficient_causal_mask_mod_for_packed_document(positions_RL)
    both = and_masks(titan_attention.get_causal_mask_mod(), documents)
    return create_block_mask(both, rows, None, columns, columns, device="cpu", BLOCK_SIZE=128)


def packed_positions(rows: int, columns: int) -> torch.Tensor:
    """[R, L] of documents of many lengths."""
    torch.manual_seed(rows * columns)
    starts = torch.rand(rows, columns) < 5 / columns
    starts[:, 0] = True
    column = torch.arange(columns).expand(rows, columns)
    return column - torch.cummax(torch.where(starts, column, 0), dim=1).values


def arrays(mask: BlockMask) -> list[torch.Tensor]:
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    return [getattr(mask, name.replace("kv", kind)) for kind in ("kv", "q") for name in names]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("ranks", "columns"), [(1, 256), (2, 256), (2, 768), (3, 1152), (4, 1024)])
def test_the_mask_of_own_columns_is_the_one_that_torch_makes(
    rows: int, ranks: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_context_parallel, "_compiled_create_block_mask", create_block_mask)
    monkeypatch.setattr(torch_context_parallel._cp_options, "enable_load_balance", False)
    monkeypatch.setattr(torch_context_parallel, "_create_default_load_balancer", lambda *_: None)
    mask, width = whole_mask(packed_positions(rows, columns)), columns // ranks
    q, k, v = (torch.randn(rows, 2, columns, 16) for _ in range(3))
    whole = flex_attention(q, k, v, block_mask=mask)
    for rank in range(ranks):
        own = slice(rank * width, (rank + 1) * width)
        mine = own_rows(mask, own)
        mesh = SimpleNamespace(size=lambda: ranks, get_local_rank=lambda rank=rank: rank, device_type="cpu")
        theirs = torch_context_parallel._create_cp_block_mask(
            mask.mask_mod, rows, 1, columns, columns, mesh  # type: ignore[arg-type]
        )  # fmt: skip
        assert (mine.seq_lengths, mine.shape) == (theirs.seq_lengths, theirs.shape)
        for my, their in zip(arrays(mine), arrays(theirs), strict=True):
            assert torch.equal(my, their)
        found = flex_attention(q[:, :, own], k, v, block_mask=mine)
        torch.testing.assert_close(found, whole[:, :, own])
