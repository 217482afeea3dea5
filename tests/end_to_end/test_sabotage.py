"""Environments that fail while a run trains: failures are counted by kind, final, and no reward of zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import Start
from tests.end_to_end.logbook import check, read_logbook
from tests.end_to_end.saboteurs import DEEDS, install

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "site")))


def test_each_failure_is_counted_by_its_kind_and_none_is_trained(start: Start, tmp_path: Path) -> None:
    sets = ["run.steps=6", "environments=[{name='sabotage'}]", "generator.play_timeout_s=1", "generator.retries=0"]
    up = start(tmp_path / "runs", sets=sets)
    summary = up.end()
    assert summary["steps"] == 6
    assert sum(summary["restarts"].values()) == 0, "an environment ended a process"
    book = read_logbook(up.folder)
    check(book)
    errors = {sequence: rollout.error for sequence, rollout in book.rollouts.items() if rollout.error}
    for deed, (kind, words) in DEEDS.items():
        assert [each for each in errors.values() if each.kind == kind and words in each.message], deed
    assert {each.kind for each in errors.values()} <= {"environment", "timeout", "too_long", "stale"}
    assert summary["left_out"]["error"] > 0
    for group in (group for step in book.steps for group in step.groups):
        for member, sequence in enumerate(group.sequences):
            if sequence in errors:
                assert group.rewards[member] is group.advantages[member] is None
                assert group.left_out[str(member)] in ("error", "stale")


def test_a_run_whose_rollouts_mostly_fail_ends_with_their_words(start: Start, tmp_path: Path) -> None:
    up = start(tmp_path / "runs", sets=["environments=[{name='broken'}]", "generator.retries=0"])
    up.process.communicate(timeout=200)
    assert up.process.returncode == 1
    words = up.progress.read_text()
    assert "64 of the last 64 rollouts failed, the newest (environment) in environment 'broken'" in words
    assert "ZeroDivisionError: division by zero. Play one task alone with headrace env try" in words
    assert not read_logbook(up.folder).steps
