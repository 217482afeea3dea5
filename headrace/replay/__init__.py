"""A recorded run once more: its steps trained again, or its rollouts published for another trainer."""

from .recorded import model_of
from .retraining import Compared, Retrained, Steps, retrain
from .rollouts import Replayed, replay_rollouts
from .what_if import what_if

__all__ = ["Compared", "Replayed", "Retrained", "Steps", "model_of", "replay_rollouts", "retrain", "what_if"]
