"""The trainer: consumes rollouts, takes steps, commits them, and publishes weights.

``titan``, which loads torch and torchtitan, is not loaded through this door.
"""

from .interrupt import Interrupt, Interrupted
from .judgement import Rules
from .learner import Learner
from .ledger_view import LedgerView
from .machine import cpu_features, library_versions
from .publication import Exported, Publication
from .recovery import load_newest_checkpoint, read_steps, train_again
from .settings import TrainerSettings
from .takeover import check_takeover
from .trainer import Provenance, Trainer

__all__ = [
    "Exported", "Interrupt", "Interrupted", "Learner", "LedgerView", "Provenance", "Publication", "Rules", "Trainer",
    "TrainerSettings", "check_takeover", "cpu_features", "library_versions", "load_newest_checkpoint", "read_steps",
    "train_again",
]  # fmt: skip
