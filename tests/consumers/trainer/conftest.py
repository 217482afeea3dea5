"""``trained``: a run's surroundings, in which a test starts trainers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bus import EmbeddedServer
from tests.consumers.trainer.trained_run import TrainedRun


@pytest.fixture
def trained(server: EmbeddedServer, run: str, tmp_path: Path) -> Iterator[TrainedRun]:
    surroundings = TrainedRun(server, run, tmp_path)
    yield surroundings
    for thread in surroundings.threads:
        thread.stop()
