"""Log lines of a role: time, level, run, role, weights version, message."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime


class RoleFormatter(logging.Formatter):
    """``2026-11-29T12:00:00.123Z INFO demo generator/0 v12 message``; times are UTC."""

    def __init__(self, run: str, role: str, version: Callable[[], int | None]) -> None:
        super().__init__()
        self._run, self._role, self._version = run, role, version

    def format(self, record: logging.LogRecord) -> str:
        version = self._version()
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = (
            f"{at} {record.levelname} {self._run} {self._role} v{'-' if version is None else version} "
            f"{record.getMessage()}"
        )
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


def configure(run: str, role: str, version: Callable[[], int | None]) -> None:
    """Send this process's log lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RoleFormatter(run, role, version))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(logging.INFO)
