"""A learner of a tiny model, and micro-batches for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consumers.trainer.micro_batch import MicroBatch
from consumers.trainer.packing import Document, build_micro_batches, pack
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.titan import Learner

TEMPERATURE = 0.8


def settings(**changes: Any) -> TrainerSettings:
    return TrainerSettings(**{"row_tokens": 64, "micro_batch_tokens": 256, "lr": 1e-3, "warmup_steps": 2, **changes})


def learner(model: Path, checkpoints: Path, seed: int = 0, **changes: Any) -> Learner:
    return Learner(
        model,
        settings(**changes),
        temperature=TEMPERATURE,
        dtype="float32",
        seed=seed,
        steps=10,
        checkpoints=checkpoints,
    )


def micro_batches(documents: list[Document], *, tokens: int = 256) -> list[MicroBatch]:
    packing = pack([len(d.tokens) for d in documents], row_tokens=64, micro_batch_tokens=tokens)
    return build_micro_batches(packing, documents)
