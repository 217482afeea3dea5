"""What the trainer needs from the thing that learns; the torchtitan one is in ``titan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from .checkpoint_folder import CheckpointDamaged
from .logprob_gap import Dtype
from .micro_batch import MicroBatch


class Learner(Protocol):
    """A model with its optimizer, schedule and checkpoints."""

    @property
    def world_size(self) -> int:
        """Processes that train together."""
        ...

    @property
    def computes_in(self) -> Dtype:
        """Type in which it computes log-probabilities."""
        ...

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """One optimizer update; returns loss, grad_norm (before it is clipped), lr and other figures of the step.

        The loss is a mean over all trained tokens of all micro-batches. Raises ValueError where there is none.
        """
        ...

    def export(self) -> bytes:
        """The parameters as safetensors with Hugging Face names, in the published dtype.

        The same parameters give the same bytes.
        """
        ...

    def load_weights(self, folder: Path) -> None:
        """Take parameters from ``folder/model.safetensors``; optimizer and schedule stay as they are.

        Raises WeightsError where the file is missing, damaged or of another model.
        """
        ...

    def save_checkpoint(self, step: int) -> None:
        """Model, optimizer, schedule and random state after step ``step``; complete or not there."""
        ...

    def begin_checkpoint(self, step: int) -> Callable[[], None]:
        """As ``save_checkpoint``, of the state as it is now; what is returned makes it, once.

        It may be called in another thread; by one process alone also while the next step is taken.
        """
        ...

    def load_checkpoint(self, step: int) -> None:
        """Raises CheckpointDamaged where it is missing or damaged, CheckpointUnusable where it is of another model."""
        ...

    def checkpoints(self) -> list[int]:
        """Steps that have a complete checkpoint, oldest first."""
        ...

    def checkpoint_faults(self) -> dict[int, CheckpointDamaged]:
        """What is wrong with each checkpoint that is damaged, or half there; reads every byte of all of them."""
        ...

    def set_checkpoint_aside(self, step: int) -> Path:
        """Rename checkpoint ``step``, so that it is none any more; returns its new place."""
        ...
