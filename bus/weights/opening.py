"""The store that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from bus.connection import Bus
from bus.settings import WeightsSettings

from .bucket import Bucket
from .file import FileWeights
from .jetstream import JetStreamWeights
from .run_files import RunFiles
from .store import Stays, WeightsStore, none_stays


def open_weights(
    bus: Bus, settings: WeightsSettings, *, shared: Path, cache: Path, stays: Stays = none_stays
) -> WeightsStore:
    """The store of the bus's run. Use it in the bus's event loop.

    ``shared``: folder of a store of files. ``cache``: folder for what is read from NATS or made of deltas, of
    this process alone.
    ``stays``: versions that are never pruned.
    """
    if settings.store == "file":
        return FileWeights(shared, settings.keep, stays, cache=cache)
    return JetStreamWeights(Bucket(bus), settings.keep, cache, stays)


def open_run_files(bus: Bus) -> RunFiles:
    """Model and configuration in the bucket of the bus's run. Use it in the bus's event loop."""
    return RunFiles(Bucket(bus))
