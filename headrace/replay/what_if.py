"""A what-if: the recorded batches with another loss or optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace import config as configuration
from headrace.config import RunConfig
from schemas import ConfigError

CHANGEABLE = ("loss", "clip_low", "clip_high", "lr", "warmup_steps", "betas", "weight_decay", "max_grad_norm")
"""Keys of ``[trainer]`` that decide what a step makes of its batch."""
_NO_EFFECT = "it does not decide what a step makes of its batch"
WHY_NOT = {
    "groups_per_step": "the log holds the groups of each step",
    "group_size": "the log holds the members of each group",
    "row_tokens": "the log holds the packing of each step",
    "micro_batch_tokens": "the log holds the packing of each step",
    "advantage": "the log holds the advantages of each step",
    "threads": "each step is trained with the threads that it was taken with",
    "data_parallel": "the trainer has one process only so far",
    "instance": _NO_EFFECT,
    "checkpoint_every": _NO_EFFECT,
    "keep_checkpoints": _NO_EFFECT,
}
"""Why the others cannot be changed."""


def what_if(file: Path, overrides: Sequence[str]) -> RunConfig:
    """The configuration in ``file`` with ``overrides``. Raises ConfigError for one that a what-if cannot have."""
    for text in overrides:
        table, _, key = text.partition("=")[0].strip().partition(".")
        name = key.split(".")[0]
        if table in RunConfig.__struct_fields__ and (table != "trainer" or not key):
            raise ConfigError(
                f"--set {text}: a what-if trains the recorded batches again, so it may change only "
                f"{', '.join(f'trainer.{each}' for each in CHANGEABLE)}"
            )
        if table == "trainer" and name in WHY_NOT:
            raise ConfigError(f"--set {text}: a what-if cannot change trainer.{name}: {WHY_NOT[name]}")
    return configuration.load(file, overrides)
