"""What a checkpoint of a learner holds, and how torchtitan's CheckpointManager (DCP) writes and reads it.

Where checkpoints lie, and when one counts, is in ``consumers/trainer/checkpoint_folder.py``.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.stateful import Stateful

from consumers.trainer.checkpoint_folder import CheckpointDamaged, CheckpointFolder, CheckpointUnusable

from . import device  # noqa: F401

# isort: split
from torchtitan.components.checkpoint import AsyncMode, CheckpointManager

from .world import World

log = logging.getLogger("headrace.trainer")
LOOK_EVERY_S, LINE_EVERY_S = 1.0, 10.0
"""At a full disk: whether there is room by now, and what is said of it."""


class _RandomState(Stateful):
    """The state of torch's generator; the same on every rank, because all start from the run's seed.

    Without a GPU's: no step draws from it, and a checkpoint that had it could be loaded on GPUs alone.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"cpu": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        torch.set_rng_state(state_dict["cpu"])


class Checkpoints:
    """The checkpoints in one folder, of one model with its optimizer, schedule and random state.

    Saving and loading are collective: all ranks call them. Rank 0 alone names and removes folders.
    """

    def __init__(
        self, folder: Path, *, keep: int, model: nn.Module, optimizers: Any, schedule: Any, world: World
    ) -> None:
        """``keep``: newest checkpoints kept, besides checkpoint 0."""
        self.folder = CheckpointFolder(folder, keep=keep)
        self._world = world
        # Our own, and the same on every rank: a trainer that was thought dead may be writing here too.
        self._name = str(int(world.sum(torch.tensor(secrets.randbits(62) if world.rank == 0 else 0))))
        self._manager = CheckpointManager.Config(
            enable=True,
            folder=str(self.folder.aside(self._name)),
            interval=1,
            keep_latest_k=0,  # its own purge knows neither checkpoint 0 nor folders that are not complete
            initial_load_model_only=False,
            last_save_model_only=False,
        ).build(
            dataloader=None,
            model_parts=[model],
            optimizers=optimizers,
            lr_schedulers=schedule,
            states={"random": _RandomState()},
            sd_adapter=None,
        )

    def save(self, step: int) -> None:
        """Write checkpoint ``step`` (replacing one of that name), then remove those that need not be kept.

        One rank alone waits for room as ``begin`` says. Raises CheckpointNotWritten where the disk refuses.
        """
        if self._world.size == 1:
            self.begin(step)()
            return
        first = self._world.rank == 0
        try:
            with self.folder.writing(self._name) if first else contextlib.nullcontext():
                self._world.barrier()
                with _quiet():
                    self._manager.save(step)
                self._world.barrier()
                if first:
                    self.folder.publish(self._name, step)
                    self.folder.prune(self._name)
        except (CheckpointException, OSError) as error:
            raise self.folder.not_written(step, _reason(error)) from error
        self._world.barrier()

    def begin(self, step: int) -> Callable[[], None]:
        """``save``, of a copy of the state in memory, for a thread beside the steps. Of one rank alone.

        A full disk is waited for, with a log line each 10 s, as everywhere else. Raises CheckpointNotWritten where the
        disk refuses for another reason.
        """
        states = {name: _copied(state) for name, state in self._manager._flattened_model_states_sd().items()}
        return lambda: self._write_in_time(step, states)

    def _write_in_time(self, step: int, states: dict[str, Any]) -> None:
        began, next_line = time.monotonic(), 0.0
        while True:
            try:
                self._write(step, states)
                return
            except (CheckpointException, OSError) as error:
                if not self.folder.lacks_room(error, _bytes_of(states)):
                    raise self.folder.not_written(step, _reason(error)) from error
            waited_s = time.monotonic() - began
            if waited_s >= next_line:
                next_line = waited_s + LINE_EVERY_S
                log.warning(
                    "checkpoint %d does not fit on the disk of %s: still trying after %.0f s; it takes %d MB",
                    step, self.folder.path, waited_s, _bytes_of(states) / 1e6,
                )  # fmt: skip
            time.sleep(LOOK_EVERY_S)

    def _write(self, step: int, states: dict[str, Any]) -> None:
        with self.folder.writing(self._name):
            with _quiet():
                place = str(self.folder.aside(self._name) / f"step-{step}")
                self._manager.dcp_save(states, checkpoint_id=place, async_mode=AsyncMode.DISABLED)
            self.folder.publish(self._name, step)
            self.folder.prune(self._name)

    def load(self, step: int) -> None:
        """Restore everything from checkpoint ``step``.

        Raises CheckpointDamaged where it is missing or damaged, and CheckpointUnusable where it is of another model.
        """
        folder = self.folder.verify(step)
        # Not manager.load(): for step 0 that would restore the parameters alone.
        states = self._manager._states_to_load(model_only=False)
        try:
            with _quiet():
                self._manager.dcp_load(states, checkpoint_id=str(folder), from_hf=False, from_quantized=False)
        except OSError as error:
            raise CheckpointDamaged(f"checkpoint {folder} cannot be read ({error}): look at the disk") from error
        except (CheckpointException, KeyError, RuntimeError, ValueError) as error:
            raise CheckpointUnusable(
                f"checkpoint {folder} is not of this model and optimizer ({_reason(error)}): "
                "use the model that the run started from"
            ) from error

    def close(self) -> None:
        self._manager.close()


def _reason(error: BaseException) -> str:
    """The last line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _bytes_of(state: Any) -> int:
    """Of all tensors in a copied state."""
    if isinstance(state, dict):
        return sum(map(_bytes_of, state.values()))
    return state.nbytes if isinstance(state, torch.Tensor) else 0


def _copied(state: Any) -> Any:
    """A copy of what a checkpoint holds, in main memory: what is stateful as its state, and tensors as new ones."""
    if isinstance(state, Stateful):
        return _copied(state.state_dict())
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    return copy.deepcopy(state)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings that say what is meant: one process has no process group, and the schedule reads its rate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        warnings.filterwarnings("ignore", message="To get the last learning rate", category=UserWarning)
        yield
