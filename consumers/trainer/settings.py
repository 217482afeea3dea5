"""Settings of the trainer: the ``[trainer]`` table of the run configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from schemas import ConfigError, Natural, Positive
from schemas.settings import Settings

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class TrainerSettings(Settings, frozen=True, kw_only=True):
    """``[trainer]``: the batch, the loss, the optimizer and its checkpoints."""

    instance: str = "trainer"
    """Name under which it writes the ledger: the same name takes over from a dead one."""
    groups_per_step: Positive = 32
    """Groups in one optimizer step."""
    group_size: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 8
    """Rollouts of one task that share a baseline."""
    row_tokens: Positive = 512
    """Length of a packed row; the longest rollout must fit into it."""
    micro_batch_tokens: Positive = 8192
    """Token budget of one forward and backward pass; a step takes as many as it needs."""
    lr: Annotated[float, msgspec.Meta(gt=0)] = 1e-6
    """Learning rate after the warm-up."""
    warmup_steps: Natural = 5
    """Steps over which the learning rate rises linearly."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: NonNegative = 0.0
    """AdamW's weight decay."""
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Gradients are scaled down to this norm."""
    loss: Literal["grpo", "reinforce"] = "grpo"
    """``grpo``: clipped importance ratios. ``reinforce``: ratios truncated from above, no clip of the gradient."""
    clip_low: Fraction = 0.2
    """``grpo``: ratios below 1 - clip_low gain nothing more."""
    clip_high: NonNegative = 0.28
    """Ratios above 1 + clip_high gain nothing more (clip-higher)."""
    advantage: Literal["std", "mean"] = "std"
    """Reward less the group's mean, divided by its standard deviation (GRPO) or not (Dr. GRPO)."""
    threads: Positive = 1
    """Intra-op threads on the CPU; they decide the bits of a sum."""
    checkpoint_every: Positive = 10
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: Annotated[int, msgspec.Meta(ge=2)] = 2
    """Newest checkpoints kept, besides checkpoint 0."""
    data_parallel: Positive = 1
    """Processes over which parameters and batches are sharded (FSDP)."""

    def __post_init__(self) -> None:
        if self.micro_batch_tokens < self.row_tokens:
            raise ConfigError(
                f"trainer.micro_batch_tokens {self.micro_batch_tokens} is below trainer.row_tokens "
                f"{self.row_tokens}: one row must fit into a micro-batch"
            )

    def checkpoint_due(self, step: int, *, last: int) -> bool:
        """Whether ``step`` has a checkpoint: every so many steps, and the ``last`` one of the run."""
        return step > 0 and (step % self.checkpoint_every == 0 or step == last)
