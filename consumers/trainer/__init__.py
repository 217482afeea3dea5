"""The trainer: consumes rollouts, takes steps, commits them, and publishes weights.

``titan``, which loads torch and torchtitan, is not loaded through this door.
"""

from .interrupt import Interrupt, Interrupted
from .judgement import Rules
from .learner import Learner
from .machine import cpu_features, library_versions
from .publication import Publication
from .settings import TrainerSettings
from .takeover import check_takeover
from .trainer import Provenance, Trainer

__all__ = [
    "Interrupt", "Interrupted", "Learner", "Provenance", "Publication", "Rules", "Trainer", "TrainerSettings",
    "check_takeover", "cpu_features", "library_versions",
]  # fmt: skip
