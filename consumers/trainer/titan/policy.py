"""A model as a policy: the log-probabilities of what was sampled, and weights in and out.

Shape legend: N trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from consumers.trainer.losses.logprobs import token_logprobs
from schemas.model import Architecture

from .attention import packed_mask
from .columns import own_columns, put_together
from .device import ON_CPU
from .device_batch import DeviceBatch
from .execution import Execution
from .hf_weights import adapter, hf_weights, load_hf_weights
from .model import TrainedLogits, build_config, build_model
from .weights_file import stored_weights
from .world import World


class Policy:
    """A torchtitan model of a Hugging Face directory, on all ranks of a world."""

    def __init__(
        self, architecture: Architecture, world: World, execution: Execution, *, max_positions: int, temperature: float
    ) -> None:
        """Its weights are undefined until they are loaded. temperature: of sampling, applied to logits first."""
        config = build_config(architecture, max_positions=max_positions)
        self.model: Any = build_model(config, architecture, world, execution)
        self._adapter = adapter(config, architecture)
        self._logits = TrainedLogits(self.model)
        self._temperature, self._world = temperature, world

    def load(self, folder: Path) -> None:
        """Take the parameters from ``folder``. Raises WeightsError where they are missing or of another model."""
        with stored_weights(folder) as weights:
            load_hf_weights(self.model, self._adapter, weights, source=str(folder))

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each whole tensor with Hugging Face's name. All ranks must take all of them together."""
        return hf_weights(self.model, self._adapter)

    def token_logprobs(self, batch: DeviceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [N] with gradient and [N] without: log-probabilities of the trained tokens, and entropies."""
        # One mask for all layers. On a GPU torchtitan makes its own from the positions (not run on a GPU yet).
        part = own_columns(batch, self._world, packed_mask if ON_CPU else self.model.get_attention_masks)
        logits_MV = self._logits(part.tokens_RC, part.positions_RC, part.masks, part.sources_M)
        found = token_logprobs(logits_MV, batch.targets_N[part.own_M], temperature=self._temperature)
        logprobs_N, entropies_N = (put_together(each, part.own_M, len(batch.targets_N), self._world) for each in found)
        return logprobs_N, entropies_N
