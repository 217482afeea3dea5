"""How the layers of a model are executed: what is computed again in the backward pass, and what is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from consumers.trainer.settings import TrainerSettings
from schemas import ConfigError

from .device import ON_CPU

# isort: split
from torchtitan.config import CompileConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC


class Execution(NamedTuple):
    """torchtitan's settings for it. They change memory and time, not what is computed."""

    checkpointing: Any = None
    """Of activations; None where all of them are kept."""
    compiling: CompileConfig = CompileConfig()

    def apply(self, model: nn.Module) -> None:
        """Make a model that is not sharded work so; torchtitan's parallelisms do it themselves."""
        if self.checkpointing is not None:
            self.checkpointing.build(dump_folder="").apply(model)


def execution(settings: TrainerSettings) -> Execution:
    """As ``trainer.activation_checkpointing`` and ``trainer.compile`` say. Raises ConfigError for this on a CPU."""
    if settings.compile and ON_CPU:
        raise ConfigError("trainer.compile is for GPUs, and this trainer runs on the CPU: set it to false")
    kinds: dict[str, Any] = {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}
    # The loss is ours; torchtitan's component "loss" would compile nothing.
    compiling = CompileConfig(enable=settings.compile, components=["model"])
    return Execution(kinds[settings.activation_checkpointing], compiling)
