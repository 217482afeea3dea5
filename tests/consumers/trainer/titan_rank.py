"""One rank of a training world, run as a program: titan_rank.py FOLDER RANK SIZE MODEL... Used by test_titan_ranks.py.

With each model, and in each way to divide the work, it takes two steps on its share of the documents, saves and loads
a checkpoint between them, and writes what it has to FOLDER/<way>/<model's name>: metrics-RANK.json, checkpoints, and on
rank 0 weights.safetensors.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from consumers.trainer.packing import build_micro_batches, pack
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.titan import Learner
from tests.consumers.trainer.tiny_models import random_documents
from tests.waiting import until

SETTINGS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    # Documents count, not tokens; a second, frozen copy of the model; layers that are computed again.
    "llama-untied": {"loss": "gspo", "kl_coef": 0.1, "tis_cap": 2.0, "activation_checkpointing": "full"},
}
WAYS: dict[str, dict[str, Any]] = {
    "rows": {"data_parallel": 2},
    "matrices": {"tensor_parallel": 2},
    "columns": {"context_parallel": 2},
}


def train(model: Path, folder: Path, rank: int, way: dict[str, Any]) -> Learner:
    folder.mkdir(exist_ok=True, parents=True)
    learner = Learner(
        model,
        TrainerSettings(
            row_tokens=64,
            micro_batch_tokens=64,
            lr=1e-3,
            warmup_steps=0,
            max_grad_norm=0.1,
            **SETTINGS[model.name],
            **way,
        ),
        temperature=0.8,
        dtype="float32",
        seed=0,
        steps=4,
        checkpoints=folder / "checkpoints",
    )
    metrics = []
    for step in range(2):
        documents = random_documents(14, seed=step)
        packing = pack([len(d.tokens) for d in documents], row_tokens=64, micro_batch_tokens=64)
        batches = build_micro_batches(packing, documents)
        # Unequal shares: the last rank has one micro-batch, the first all others.
        own = batches if "data_parallel" not in way else (batches[:-1] if rank == 0 else batches[-1:])
        metrics.append(learner.step(own))
        if step == 0:
            learner.save_checkpoint(1)
            learner.step(own)
            learner.load_checkpoint(1)
    (folder / f"metrics-{rank}.json").write_text(json.dumps(metrics))
    # One, and the one before it, and three projections of one layer that torchtitan gathers. Rank 0 keeps all.
    with whole_tensors(at_most=5 if rank and "data_parallel" in way else math.inf) as gathered:
        weights = learner.export()
    if rank == 0:
        (folder / "weights.safetensors").write_bytes(weights)
        return learner
    assert weights == b""
    assert "data_parallel" not in way or len(gathered) > 0
    return learner


@contextlib.contextmanager
def whole_tensors(*, at_most: float) -> Iterator[list[StorageWeakRef]]:
    """Those that ranks have gathered. Raises AssertionError where more than ``at_most`` are in memory at a time."""
    full_tensor, gathered = DTensor.full_tensor, list[StorageWeakRef]()

    def counted(self: DTensor, **options: Any) -> torch.Tensor:
        whole = full_tensor(self, **options)
        gathered.append(StorageWeakRef(whole.untyped_storage()))
        # gloo's own thread may let go of the one before a moment later.
        until(lambda: sum(not each.expired() for each in gathered) <= at_most)
        return whole

    DTensor.full_tensor = counted  # type: ignore[method-assign]
    try:
        yield gathered
    finally:
        DTensor.full_tensor = full_tensor  # type: ignore[method-assign]


def main(folder: Path, rank: int, size: int, models: list[Path]) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    # What torchrun would do over a port, over a file.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    learners = [train(model, folder / way / model.name, rank, WAYS[way]) for way in WAYS for model in models]
    learners[0].close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [Path(model) for model in sys.argv[4:]])
