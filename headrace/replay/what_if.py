"""A what-if: the recorded batches with another loss or optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consumers.trainer import TrainerSettings
from headrace import config as configuration
from headrace.config import RunConfig
from schemas import ConfigError

CHANGEABLE = (
    "loss", "loss_args", "aggregation", "length_constant", "clip_low", "clip_high", "divergence_bound", "tis_cap",
    "kl_coef", "lr", "lr_decay", "warmup_steps", "betas", "weight_decay", "max_grad_norm",
)  # fmt: skip
"""Keys of ``[trainer]`` that decide what a step makes of its recorded batch: all there are, and no others."""
_RECORDED_RULES = "each step is trained by the rules that it was taken with"
_ONE_PROCESS = "steps are trained again in one process, however many it were"
_NO_EFFECT = "it does not decide what a step makes of its batch"
WHY_NOT = {
    "groups_per_step": "the log holds the groups of each step",
    "group_size": "the log holds the members of each group",
    "row_tokens": "the log holds the packing of each step",
    "micro_batch_tokens": "the log holds the packing of each step",
    "advantage": "the log holds the advantages of each step",
    "truncated": _RECORDED_RULES,
    "too_long": _RECORDED_RULES,
    "threads": "each step is trained with the threads that it was taken with",
    "data_parallel": _ONE_PROCESS,
    "tensor_parallel": _ONE_PROCESS,
    "context_parallel": _ONE_PROCESS,
}
"""Why others cannot be changed; for what is not here, ``_NO_EFFECT``."""


def what_if(file: Path, overrides: Sequence[str]) -> RunConfig:
    """The configuration in ``file`` with ``overrides``. Raises ConfigError for one that a what-if cannot have."""
    may = f"it may change only {', '.join(f'trainer.{each}' for each in CHANGEABLE)}"
    for text in overrides:
        table, _, key = text.partition("=")[0].strip().partition(".")
        name = key.split(".")[0]
        if table in RunConfig.__struct_fields__ and (table != "trainer" or not key):
            raise ConfigError(f"--set {text}: a what-if trains the recorded batches again: {may}")
        if table == "trainer" and name in TrainerSettings.__struct_fields__ and name not in CHANGEABLE:
            reason = WHY_NOT.get(name, _NO_EFFECT)
            raise ConfigError(f"--set {text}: a what-if cannot change trainer.{name}, as {reason}: {may}")
    return configuration.load(file, overrides)
