"""A whole run whose trainer is two ranks, one of which is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import Start, Up
from tests.end_to_end.logbook import Logbook, check
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.timeout(400)


def ranks(up: Up) -> dict[str, psutil.Process]:
    """The trainer's processes by their RANK; the one who started them has none."""
    found = {}
    for each in up.running("train"):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[each.environ().get("RANK", "launcher")] = each
    assert sorted(found) == ["0", "1", "launcher"]
    return found


def test_a_killed_rank_ends_the_step_and_recovery_brings_all_back(
    start: Start, tmp_path: Path, logbook_of: Callable[[Path], Logbook]
) -> None:
    up = start(tmp_path, sets=["trainer.data_parallel=2", "run.steps=12", "trainer.checkpoint_every=2"])
    up.until("step   1/12")
    family = ranks(up)  # Before there is haste: looking for them takes a while, and meanwhile the run goes on.
    up.until("step   3/12")
    family["1"].kill()
    _, left = psutil.wait_procs(family.values(), timeout=DEADLINE_S)
    assert left == [], "a rank has outlived the others"
    summary = up.end()
    assert (summary["steps"], summary["restarts"]["trainer"]) == (12, 1)
    assert "trainer ended with 137 and is started again" in up.progress.read_text()
    told = (up.folder / "logs" / "trainer.log").read_text()
    assert f"rank 1 (process {family['1'].pid}) was ended by SIGKILL: all ranks end" in told
    assert "Traceback" not in told
    book = logbook_of(up.folder)
    check(book)
    first, second = book.terms
    assert (first.committed, second.committed >= 3) == (0, True)
    assert {step.world_size for step in book.steps} == {2}
