"""The optimizer and the learning rate of each step: torchtitan's, by the settings of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from consumers.trainer.settings import TrainerSettings

from . import device  # noqa: F401

# isort: split
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw


class Optimizer:
    """AdamW over the parameters of a model, and its schedule. A checkpoint holds ``containers``, and so both."""

    def __init__(self, model: nn.Module, settings: TrainerSettings, *, steps: int) -> None:
        """``steps``: the run's; without a decay the learning rate does not depend on it."""
        self._settings = settings
        optimizers = default_adamw(lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay).build(
            model_parts=[model]
        )
        _materialize(optimizers)
        self.containers: tuple[Any, Any] = (optimizers, _schedule(optimizers, settings, steps))
        """torchtitan's optimizers and schedules."""

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.containers[1].schedulers[0].get_last_lr()[0])

    def step(self) -> None:
        """One update by the gradients that the parameters have, which are gone afterwards."""
        optimizers, schedules = self.containers
        optimizers.step()
        schedules.step()
        optimizers.zero_grad()

    def restored(self) -> None:
        """After a checkpoint was loaded: what it holds of the settings counts as it is set now."""
        for schedule in self.containers[1].schedulers:
            for group, lr in zip(schedule.optimizer.param_groups, schedule.get_last_lr(), strict=True):
                group |= {"lr": lr, "betas": self._settings.betas, "weight_decay": self._settings.weight_decay}


def _schedule(optimizers: Any, settings: TrainerSettings, steps: int) -> Any:
    """The learning rate rises linearly, then stays or falls so that the step after the run's last would have none.

    Staying is a decay to 1.0, also past ``steps``: without a decay torchtitan's schedule asserts at its end. At least
    one step longer than the warm-up, which torchtitan would shorten otherwise.
    """
    decays: dict[str, Any] = {"min_lr_factor": 1.0}
    if settings.lr_decay != "constant":
        decays = {"decay_type": settings.lr_decay, "min_lr_factor": 0.0}
    return LRSchedulersContainer.Config(warmup_steps=settings.warmup_steps, **decays).build(
        optimizers=optimizers, training_steps=max(steps, settings.warmup_steps + 1)
    )


def _materialize(optimizers: Any) -> None:
    """Make the optimizer's state as it is before the first step.

    Left alone, torchtitan makes it for the first checkpoint by a step that counts: after checkpoint 0 AdamW corrected
    its bias for one step more than were taken, and without one it did not.
    """
    optimizers.state_dict()
    for optimizer in optimizers.optimizers:
        states: Sequence[dict[str, Any]] = list(optimizer.state.values())
        for state in states:
            state["step"].zero_()
