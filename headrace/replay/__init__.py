"""A recorded run once more: its steps trained again, or its rollouts published for another trainer."""

from .recorded import configuration_file
from .retraining import Compared, Retrained, Steps, retrain
from .rollouts import Replayed, replay_rollouts
from .what_if import what_if

__all__ = ["Compared", "Replayed", "Retrained", "Steps", "configuration_file", "replay_rollouts", "retrain", "what_if"]
