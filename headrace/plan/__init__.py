"""Planning a run: a closed form of step time, idle shares and staleness, and a simulation with the real decisions."""

from .prediction import Prediction
from .rates import Floats, Layout, Rates, Rollouts, decoding, distribution, pair
from .recorded import Recorded, recorded
from .simulation import Simulation
from .steady import BALANCED, balance, predict

__all__ = [
    "BALANCED", "Floats", "Layout", "Prediction", "Rates", "Recorded", "Rollouts", "Simulation", "balance", "decoding",
    "distribution", "pair", "predict", "recorded",
]  # fmt: skip
