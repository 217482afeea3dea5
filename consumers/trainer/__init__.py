"""The trainer: consumes rollouts, takes steps, commits them, and publishes weights.

``titan``, which loads torch and torchtitan, is not loaded through this door.
"""

from .checkpoint_folder import CheckpointDamaged, CheckpointUnusable, checkpoint_steps
from .collector import Collector
from .committer import Provenance
from .groups import Assembly
from .interrupt import RANK_LOST, Interrupt, Interrupted
from .judgement import Rules
from .learner import Learner
from .ledger_view import LedgerView
from .log_room import Room, RoomWatch
from .losses import check_loss
from .machine import cpu_features, device_name, library_versions, promises_bits
from .publication import Exported, Publication
from .ranks import LISTENING, RankedLearner, RankLost, follow
from .recovery import load_newest_checkpoint, read_steps, train_again
from .settings import TrainerSettings
from .takeover import check_takeover
from .tally import staleness_metrics
from .trainer import Trainer

__all__ = [
    "LISTENING", "RANK_LOST", "Assembly", "CheckpointDamaged", "CheckpointUnusable", "Collector", "Exported",
    "Interrupt", "Interrupted", "Learner", "LedgerView", "Provenance", "Publication", "RankLost", "RankedLearner",
    "Room", "RoomWatch", "Rules", "Trainer", "TrainerSettings", "check_loss", "check_takeover", "checkpoint_steps",
    "cpu_features", "device_name", "follow", "library_versions", "load_newest_checkpoint", "promises_bits",
    "read_steps", "staleness_metrics", "train_again",
]  # fmt: skip
