"""The dispatcher: publishes tasks."""

from .admission import Admission
from .dispatcher import Dispatcher
from .tasks import TaskSource

__all__ = ["Admission", "Dispatcher", "TaskSource"]
