"""Who publishes: the dispatcher (tasks) and the generator (rollouts)."""

from .dispatcher import Admission, Dispatcher, TaskSource
from .generator import (
    Aborted,
    Engine,
    Gate,
    Generator,
    GeneratorSettings,
    Player,
    SamplingRequest,
    WeightsFeed,
)

__all__ = [
    "Aborted", "Admission", "Dispatcher", "Engine", "Gate", "Generator", "GeneratorSettings", "Player",
    "SamplingRequest", "TaskSource", "WeightsFeed",
]  # fmt: skip
