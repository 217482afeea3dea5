"""Where the time of a step goes."""

from __future__ import annotations

import time

import pytest

from consumers.trainer.stopwatch import Stopwatch
from consumers.trainer.tally import step_times


def test_laps_add_up_to_all_that_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 14.0, 14.5, 16.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    watch = Stopwatch()
    assert [watch.lap(part) for part in ("pack", "compute", "pack")] == [1.0, 3.0, 0.5]
    assert watch.take() == {"pack_s": 1.5, "compute_s": 3.0}
    watch.lap("export")
    assert watch.take() == {"export_s": 2.0}


def test_overhead_is_all_but_waiting_and_computing() -> None:
    laps = {"collect_s": 5.0, "pack_s": 0.25, "compute_s": 8.0, "export_s": 0.5}
    assert step_times(laps, wait_s=4.0) == {
        "wait_s": 4.0, "assemble_s": 1.0, "pack_s": 0.25, "compute_s": 8.0, "export_s": 0.5, "overhead_s": 1.75,
        "train_s": 8.75,
    }  # fmt: skip
