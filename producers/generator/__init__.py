"""The generator: plays groups on an inference engine and publishes rollouts; one of them evaluates."""

from .engine import Aborted, Engine, SamplingRequest
from .evaluation import Evaluator
from .feed import Prefetched, WeightsFeed
from .gate import Gate, RolloutSampler, SwapReport, TooLate
from .generator import Generator
from .lateness import too_late
from .lease import Lease
from .play import Player
from .settings import GeneratorSettings

__all__ = [
    "Aborted", "Engine", "Evaluator", "Gate", "Generator", "GeneratorSettings", "Lease", "Player", "Prefetched",
    "RolloutSampler", "SamplingRequest", "SwapReport", "TooLate", "WeightsFeed", "too_late",
]  # fmt: skip
