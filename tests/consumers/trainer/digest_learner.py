"""A learner whose weights are a digest of all that it was given, with real checkpoint folders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from consumers.trainer import CheckpointDamaged
from consumers.trainer.checkpoint_folder import CheckpointFolder
from consumers.trainer.logprob_gap import Dtype
from consumers.trainer.micro_batch import MicroBatch

FILE = "parameters"
START = b"start"


class DigestLearner:
    """Its parameters are the sha256 of what they were and of the arrays it was given."""

    world_size = 1
    computes_in: Dtype = "float32"

    def __init__(self, checkpoints: Path, *, keep: int = 2, start: bytes = START) -> None:
        """``start``: what the model directory holds."""
        self.parameters = start
        self.metrics: dict[str, float] = {}
        self.folder = CheckpointFolder(checkpoints, keep=keep)
        checkpoints.mkdir(exist_ok=True)

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        digest = hashlib.sha256(self.parameters)
        for batch in micro_batches:
            for array in (batch.tokens_RL, batch.trained_RL, batch.advantages_RL, batch.logprobs_RL):
                digest.update(array.tobytes())
        self.parameters = digest.digest()
        return {"loss": 0.5, "grad_norm": 1.0} | self.metrics

    def export(self) -> bytes:
        return self.parameters

    def load_weights(self, folder: Path) -> None:
        self.parameters = (folder / "model.safetensors").read_bytes()

    def save_checkpoint(self, step: int) -> None:
        self.begin_checkpoint(step)()

    def begin_checkpoint(self, step: int) -> Callable[[], None]:
        return partial(self._write_checkpoint, step, self.parameters)

    def _write_checkpoint(self, step: int, parameters: bytes) -> None:
        name = f"learner-{id(self)}"
        with self.folder.writing(name):
            folder = self.folder.aside(name) / f"step-{step}"
            folder.mkdir()
            (folder / FILE).write_bytes(parameters)
            self.folder.publish(name, step)
            self.folder.prune(name)

    def load_checkpoint(self, step: int) -> None:
        self.parameters = (self.folder.verify(step) / FILE).read_bytes()

    def checkpoints(self) -> list[int]:
        return self.folder.steps()

    def checkpoint_faults(self) -> dict[int, CheckpointDamaged]:
        return self.folder.faults()

    def set_checkpoint_aside(self, step: int) -> Path:
        return self.folder.set_aside(step)


class SparseLearner(DigestLearner):
    """Of whose weights a step changes little: they are a long row of nothing, and then the digest."""

    NOTHING = bytes(4096)

    def __init__(self, checkpoints: Path, *, keep: int = 2) -> None:
        super().__init__(checkpoints, keep=keep, start=bytes(32))

    def export(self) -> bytes:
        return self.NOTHING + self.parameters

    def load_weights(self, folder: Path) -> None:
        super().load_weights(folder)
        self.parameters = self.parameters[len(self.NOTHING) :]
