"""Settings of the trainer: the ``[trainer]`` table of the run configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from schemas import ConfigError, Natural, Positive, check_name
from schemas.settings import Settings

from .losses.registry import Aggregation, own_aggregation

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]
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
    """Length of a packed row; the longest training sequence must fit into it."""
    micro_batch_tokens: Positive = 8192
    """Token budget of one forward and backward pass, of all ranks together; a step takes as many as it needs."""
    lr: Annotated[float, msgspec.Meta(gt=0)] = 1e-6
    """Learning rate after the warm-up."""
    warmup_steps: Natural = 5
    """Steps over which the learning rate rises linearly."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: NonNegative = 0.0
    """AdamW's weight decay."""
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Gradients are scaled down to this norm."""
    lr_decay: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from the end of the warm-up to run.steps; see docs/losses.md on extending a run."""
    loss: str = "grpo"
    """``grpo``, ``dapo``, ``dr_grpo``, ``gspo``, ``cispo`` (or ``reinforce``), ``dppo``, ``ipo``, or one of a package
    of your own; see docs/losses.md."""
    loss_args: dict[str, Any] = msgspec.field(default_factory=dict)
    """Settings that the loss takes beyond those of this table."""
    aggregation: Aggregation | None = None
    """How tokens are added up: the mean over tokens, over documents of their means, or over documents of their sums
    in units of length_constant tokens. Null: as the loss has it."""
    length_constant: Positive | None = None
    """What ``constant`` divides a document's sum by, in tokens. Null: row_tokens."""
    clip_low: Fraction = 0.2
    """Ratios below 1 - clip_low gain nothing more, in losses that clip."""
    clip_high: NonNegative = 0.28
    """Ratios above 1 + clip_high gain nothing more (clip-higher)."""
    divergence_bound: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.2
    """``dppo`` and ``ipo``: a token whose probability moved further than this is masked."""
    tis_cap: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Truncated importance sampling: each token is weighted by min(policy / behaviour, this), and the loss takes its
    ratio to the trainer's own policy. Null: off."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL divergence from the run's start weights. Above 0 a second copy of the model is kept."""
    advantage: Literal["std", "mean", "loo"] = "std"
    """Reward less the group's mean, divided by its standard deviation (GRPO) or not (Dr. GRPO), or less the mean of
    the other members (leave-one-out, RLOO)."""
    truncated: Literal["train", "mask", "drop"] = "train"
    """Rollouts whose last reply met its token limit: trained as any other, not trained though their rewards count in
    the baseline, or left out with their rewards."""
    too_long: Literal["drop", "cut"] = "drop"
    """What does not fit into a row: left out, or cut after row_tokens tokens."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """What is computed again in the backward pass instead of being kept: nothing, what is cheap, or whole layers."""
    compile: bool = False
    """Compile the layers (torch.compile); on a GPU only."""
    threads: Positive = 1
    """Intra-op threads on the CPU; they decide the bits of a sum."""
    checkpoint_every: Positive = 10
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: Annotated[int, msgspec.Meta(ge=2)] = 2
    """Newest checkpoints kept, besides checkpoint 0."""
    max_logprob_gap: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Most that trainer and generator may differ on tokens that the newest weights sampled, in nats, in the mean over a
    step with at least 128 of them; above it the run ends before the step is committed. Null: 0.001 where both
    compute in float32, 0.1 where one computes in bfloat16: the trainer on a GPU, the generator by weights.dtype."""
    data_parallel: Positive = 1
    """Processes over which parameters and batches are sharded (FSDP)."""
    tensor_parallel: Positive = 1
    """Processes over which each layer's matrices are divided; must divide the model's attention heads of both kinds."""
    context_parallel: Positive = 1
    """Processes over which the columns of each row are divided, for rows too long for one."""

    def __post_init__(self) -> None:
        check_name(self.instance, "trainer.instance")
        if self.micro_batch_tokens < self.row_tokens:
            raise ConfigError(
                f"trainer.micro_batch_tokens {self.micro_batch_tokens} is below trainer.row_tokens "
                f"{self.row_tokens}: one row must fit into a micro-batch"
            )

    @property
    def loss_settings(self) -> dict[str, float]:
        """What any loss may take by these names."""
        return {
            "clip_low": self.clip_low,
            "clip_high": self.clip_high,
            "divergence_bound": self.divergence_bound,
        }

    @property
    def loss_aggregation(self) -> Aggregation:
        """How tokens are added up."""
        return self.aggregation or own_aggregation(self.loss)

    @property
    def loss_constant(self) -> int:
        """What ``constant`` divides by, in tokens."""
        return self.length_constant or self.row_tokens

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.data_parallel * self.tensor_parallel * self.context_parallel

    def checkpoint_due(self, step: int, *, last: int) -> bool:
        """Whether ``step`` has a checkpoint: every so many steps, and the ``last`` one of the run."""
        return step > 0 and (step % self.checkpoint_every == 0 or step == last)
