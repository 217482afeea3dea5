"""Checkpoints of a learner: complete under their name, or not there.

    FOLDER/step-12/           what torchtitan's CheckpointManager (DCP) wrote, and manifest.json
    FOLDER/.aside/            what is being written or removed; whatever a crash left there is deleted

A checkpoint is written aside, hashed, synced and then renamed. Loading verifies every byte against the manifest first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.stateful import Stateful

from schemas import HeadraceError

from . import device  # noqa: F401

# isort: split
from torchtitan.components.checkpoint import CheckpointManager

from .world import World

_MANIFEST = "manifest.json"
_REMEDY = "delete the folder and start from an older one"


class CheckpointUnusable(HeadraceError):
    """A checkpoint is missing, damaged, or of another model. An older one may still serve."""


class _File(msgspec.Struct, frozen=True):
    size_bytes: int
    sha256: str


class _RandomState(Stateful):
    """The states of torch's generators; the same on every rank, because all start from the run's seed."""

    def state_dict(self) -> dict[str, Any]:
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        torch.set_rng_state(state_dict["cpu"])
        if "cuda" in state_dict:
            torch.cuda.set_rng_state(state_dict["cuda"])


class Checkpoints:
    """The checkpoints in one folder, of one model with its optimizer, schedule and random state.

    Saving and loading are collective: all ranks call them. Rank 0 alone names and removes folders.
    """

    def __init__(
        self, folder: Path, *, keep: int, model: nn.Module, optimizers: Any, schedule: Any, world: World
    ) -> None:
        """``keep``: newest checkpoints kept, besides checkpoint 0."""
        self._folder, self._aside = folder.resolve(), folder.resolve() / ".aside"
        self._keep = keep
        self._world = world
        self._manager = CheckpointManager.Config(
            enable=True,
            folder=str(self._aside),
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

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        found = (re.fullmatch(r"step-(\d+)", path.parent.name) for path in self._folder.glob(f"step-*/{_MANIFEST}"))
        return sorted(int(match[1]) for match in found if match)

    def save(self, step: int) -> None:
        """Write checkpoint ``step`` (replacing one of that name), then remove those that need not be kept."""
        if self._world.rank == 0:
            shutil.rmtree(self._aside, ignore_errors=True)
            self._aside.mkdir(parents=True)
        self._world.barrier()
        with _quiet():
            self._manager.save(step)
        self._world.barrier()
        if self._world.rank == 0:
            _write_manifest(self._aside / f"step-{step}")
            self._publish(step)
            self._prune()
        self._world.barrier()

    def load(self, step: int) -> None:
        """Restore everything from checkpoint ``step``. Raises CheckpointUnusable, naming it and why."""
        folder = (self._folder / f"step-{step}").resolve()  # errors name the place itself where this is a link
        _verify(folder, have=self.steps())
        # Not manager.load(): for step 0 that would restore the parameters alone.
        states = self._manager._states_to_load(model_only=False)
        try:
            with _quiet():
                self._manager.dcp_load(states, checkpoint_id=str(folder), from_hf=False, from_quantized=False)
        except (CheckpointException, KeyError, RuntimeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise CheckpointUnusable(
                f"checkpoint {folder} is not of this model and optimizer ({reason}): "
                "use the model that the run started from"
            ) from error

    def close(self) -> None:
        self._manager.close()

    def _publish(self, step: int) -> None:
        final = self._folder / f"step-{step}"
        if final.exists():
            final.rename(self._aside / "replaced")
        (self._aside / f"step-{step}").rename(final)
        _sync_folder(self._folder)

    def _prune(self) -> None:
        later = [step for step in self.steps() if step > 0]
        for step in later[: -self._keep]:
            # Renamed first: a folder that is half deleted must not look complete.
            (self._folder / f"step-{step}").rename(self._aside / f"pruned-{step}")
        shutil.rmtree(self._aside, ignore_errors=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings that say what is meant: one process has no process group, and the schedule reads its rate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        warnings.filterwarnings("ignore", message="To get the last learning rate", category=UserWarning)
        yield


def _write_manifest(folder: Path) -> None:
    files = {path.name: _describe(path) for path in sorted(folder.iterdir())}
    with (folder / _MANIFEST).open("wb") as file:
        file.write(msgspec.json.encode(files))
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _describe(path: Path) -> _File:
    with path.open("rb") as file:
        return _File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _sync_folder(folder: Path) -> None:
    """Make renames within ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _verify(folder: Path, *, have: list[int]) -> None:
    manifest = folder / _MANIFEST
    try:
        files = msgspec.json.decode(manifest.read_bytes(), type=dict[str, _File])
    except FileNotFoundError:
        raise CheckpointUnusable(f"there is no checkpoint {folder}: complete ones are of steps {have}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointUnusable(f"checkpoint {folder} is damaged: {_MANIFEST}: {error}: {_REMEDY}") from None
    for name, expected in files.items():
        try:
            found = _describe(folder / name)
        except OSError as error:
            raise CheckpointUnusable(f"checkpoint {folder} is damaged: {name}: {error.strerror}: {_REMEDY}") from None
        if found != expected:
            raise CheckpointUnusable(f"checkpoint {folder} is damaged: {name} is not what was written: {_REMEDY}")
