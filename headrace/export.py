"""A run's weights as an ordinary Hugging Face directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec

from bus import Bus, in_thread, open_run_files, open_weights
from schemas import LEDGER, ModelError, Weights, WeightsError
from schemas.model import WEIGHTS_FILE

from .config import RunConfig
from .configured import configuration_of, no_configuration
from .inquiry import Place
from .models.directory import COMPANIONS, new_directory


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    folder: str
    version: int
    sha256: str
    """Of the weights file."""
    dtype: str
    """Of its tensors: float32 or bfloat16."""


async def announced(bus: Bus) -> dict[int, Weights]:
    """Version to its event, of all that the run announced."""
    found: dict[int, Weights] = {}
    async for logged in bus.read(LEDGER, kinds=(Weights,)):
        assert isinstance(logged.event, Weights)
        found[logged.event.version] = logged.event
    return found


async def export_model(bus: Bus, place: Place, version: int | None, target: Path) -> Exported:
    """Write ``version`` (None: the newest that is stored) of a run's weights to ``target``, verified.

    ``target`` appears whole or not at all; it may exist empty.
    Raises RunError where the run's configuration is nowhere; ModelError where ``target`` holds something, or the model
    that the run began with is gone; WeightsError where the version was never made, is no longer stored (it names
    those that are), or is damaged.
    """
    config = await configuration_of(bus, place)
    if config is None:
        raise no_configuration(place)
    weights = await announced(bus)
    with new_directory(target) as aside:
        fetched = aside / "fetched"
        store = open_weights(bus, config.weights, shared=place.folder.weights, cache=fetched / "weights")
        chosen = _choose(weights, await store.versions(), version, place.run)
        source = await _model(bus, config, fetched / "model")
        await in_thread(_assemble, source, await store.fetch(chosen), aside, chosen.dtype)
        await in_thread(shutil.rmtree, fetched, ignore_errors=True)
    return Exported(folder=str(target), version=chosen.version, sha256=chosen.sha256, dtype=chosen.dtype)


async def _model(bus: Bus, config: RunConfig, fetched: Path) -> Path:
    """The directory of the model that the run began with, its tensors left out where it comes from NATS."""
    source = Path(config.model.path)
    if config.weights.store == "jetstream":
        # What lies at the trainer's path here may be another model.
        await open_run_files(bus).fetch_model(fetched, tensors=False)
        return fetched
    if not (source / "config.json").is_file():
        raise ModelError(
            f"{source} is gone, whose configuration and tokenizer the export needs: put the model that the run "
            "began with there again (model.path)"
        )
    return source


def _assemble(source: Path, weights: Path, target: Path, dtype: str) -> None:
    """Put the weights in folder ``weights`` and what lies beside those in ``source`` into ``target``."""
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    _set_dtype(target / "config.json", dtype)
    shutil.copyfile(weights / WEIGHTS_FILE, target / WEIGHTS_FILE)


def _choose(weights: dict[int, Weights], stored: dict[int, str], version: int | None, run: str) -> Weights:
    """``stored``: version to sha256 of what the store has."""
    available = [each for each, sha256 in stored.items() if each in weights and weights[each].sha256 == sha256]
    if not available:
        raise WeightsError(
            f"run {run!r} has no weights in its store: it made none, or they were removed; files (weights.store) are "
            "looked for in the run's folder, which --dir may name"
        )
    version = available[-1] if version is None else version
    if version not in available:
        never = "" if version in weights else " (and was never announced)"
        raise WeightsError(
            f"weights {version} of run {run!r} are not in the store{never}; it has "
            f"{', '.join(str(each) for each in available)} (weights.keep = 0 keeps all)"
        )
    return weights[version]


def _set_dtype(path: Path, dtype: str) -> None:
    """Say in config.json which type the weights have; the older name of the key is replaced too where it stands."""
    configuration = json.loads(path.read_text(encoding="utf-8"))
    for name in {"dtype", *({"torch_dtype"} & configuration.keys())}:
        configuration[name] = dtype
    path.write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")
