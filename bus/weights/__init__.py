"""Moving weights: one store with two backends, and what else a generator on another machine needs."""

from .bucket import Bucket
from .delta import Delta, make_delta
from .file import FileWeights
from .jetstream import JetStreamWeights
from .opening import open_run_files, open_weights
from .run_files import RunFiles
from .store import Stored, WeightsStore

__all__ = [
    "Bucket", "Delta", "FileWeights", "JetStreamWeights", "RunFiles", "Stored", "WeightsStore", "make_delta",
    "open_run_files", "open_weights",
]  # fmt: skip
