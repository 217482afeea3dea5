"""Who publishes: the dispatcher (tasks) and the generator (rollouts and evaluations)."""

from .dispatcher import Admission, Dispatcher, TaskSource
from .generator import (
    Aborted,
    Engine,
    Evaluator,
    Gate,
    Generator,
    GeneratorSettings,
    Player,
    SamplingRequest,
    WeightsFeed,
    too_late,
)
from .held_out import evaluation_tasks

__all__ = [
    "Aborted", "Admission", "Dispatcher", "Engine", "Evaluator", "Gate", "Generator", "GeneratorSettings",
    "Player", "SamplingRequest", "TaskSource", "WeightsFeed", "evaluation_tasks", "too_late",
]  # fmt: skip
