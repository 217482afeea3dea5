"""Columns divided over ranks: what each passes through the model, as on a GPU, where they come in blocks."""

from __future__ import annotations

import pytest
import torch

from consumers.trainer.packing import build_micro_batches
from consumers.trainer.titan import columns
from consumers.trainer.titan.columns import Columns, own_columns
from consumers.trainer.titan.device_batch import DeviceBatch, to_device
from consumers.trainer.titan.world import World
from tests.consumers.trainer.test_titan_attention import whole_mask
from tests.consumers.trainer.tiny_models import random_documents

CPU = torch.device("cpu")


def batch_of(documents: int) -> DeviceBatch:
    """One row."""
    (batch,) = build_micro_batches([[[*range(documents)]]], random_documents(documents, seed=0))
    return to_device(batch, CPU)


def parts_of(batch: DeviceBatch, ranks: int) -> list[Columns]:
    worlds = (World(rank=rank, size=ranks, device=CPU, context_parallel=ranks) for rank in range(ranks))
    return [own_columns(batch, world, whole_mask) for world in worlds]


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", 128)


@pytest.mark.parametrize(("documents", "ranks"), [(1, 2), (1, 4), (12, 2)])
def test_padding_has_no_position_that_the_rotary_tables_lack(documents: int, ranks: int) -> None:
    batch = batch_of(documents)
    width = batch.positions_RL.shape[1]
    positions_RL = torch.cat([part.positions_RC for part in parts_of(batch, ranks)], dim=1)
    assert torch.equal(positions_RL[:, :width], batch.positions_RL)
    assert positions_RL.shape[1] % (128 * ranks) == 0
    assert positions_RL[0, width] == 0, "padding begins with a document of its own"
    assert positions_RL[:, width:].max() < width


def test_every_trained_token_is_found_on_one_rank() -> None:
    batch = batch_of(12)
    parts = parts_of(batch, 2)
    assert sorted(int(each) for part in parts for each in part.own_M) == [*range(len(batch.sources_N))]
    for part in parts:
        sources = batch.tokens_RL.flatten()[batch.sources_N[part.own_M]]
        assert torch.equal(part.tokens_RC.flatten()[part.sources_M], sources)
