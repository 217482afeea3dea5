"""Whether a run may go on as it is asked to: with the configuration that it has, and with steps left to take."""

from __future__ import annotations

from pathlib import Path

from bus import Bus
from consumers.trainer import checkpoint_steps
from schemas import LEDGER, RunError, Step, Weights

from .config import RunConfig, differences, digest, stored
from .folder import RunFolder

FREE_BEFORE_STEP_1 = "trainer."
"""Keys that may change until a step is committed: nothing was trained with them."""


def check_unchanged(config: RunConfig, folder: RunFolder, *, free: str | None = None) -> None:
    """Raise RunError, saying what changed, where the run's folder keeps a configuration that decides otherwise.

    ``free``: keys that begin so may differ.
    """
    if not folder.exists:
        return
    changes = [line for line in differences(stored(folder.path), config) if free is None or not line.startswith(free)]
    if changes:
        raise _changed(config, "; ".join(changes))


async def check_unchanged_since_step(bus: Bus, config: RunConfig, folder: RunFolder) -> None:
    """Raise RunError where the run's folder, or the last committed step, has a configuration that decides otherwise."""
    last = await bus.last(LEDGER, Step)
    if last is None or not isinstance(last.event, Step):
        check_unchanged(config, folder, free=FREE_BEFORE_STEP_1)
        return
    check_unchanged(config, folder)
    recorded, now = last.event.config_digest, digest(config)
    if recorded != now:
        raise _changed(
            config,
            f"step {last.event.number} was trained with one of digest {recorded[:12]}, this one's is {now[:12]}, and "
            "the other is not in the run's folder: what changed cannot be listed",
        )


def _changed(config: RunConfig, what: str) -> RunError:
    return RunError(
        f"run {config.run.name!r} was started with another configuration ({what}): "
        "give the run another name with --set run.name=NAME, or go on with --accept-changes"
    )


async def finished(bus: Bus, config: RunConfig, checkpoints: Path) -> str | None:
    """That the run is finished, and how to extend it; None where there is still something to do.

    A trainer that was killed between its last step and that step's weights or checkpoint has to make up for it.
    """
    last, weights = await bus.last(LEDGER, Step), await bus.last(LEDGER, Weights)
    if last is None or not isinstance(last.event, Step) or last.event.number < config.run.steps:
        return None
    number = last.event.number
    if weights is None or not isinstance(weights.event, Weights) or weights.event.version < number:
        return None
    if number == config.run.steps and number not in checkpoint_steps(checkpoints):
        return None
    return (
        f"run {config.run.name!r} is finished: step {number} of {config.run.steps} is committed. "
        f"Extend it with --set run.steps={2 * number}, or start another with --set run.name=NAME"
    )
