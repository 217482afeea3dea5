"""What a run loses when its nats-server is restarted again and again, and what people have to do: nothing."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import Start, Up
from tests.end_to_end.logbook import check, read_logbook

RESTARTS = 10
pytestmark = pytest.mark.timeout(400)


def server_of(up: Up) -> psutil.Process:
    [server] = up.running("nats-server")
    return server


def test_a_server_that_is_restarted_ten_times_under_load_loses_nothing(start: Start, tmp_path: Path) -> None:
    up = start(tmp_path, generators=2, sets=[f"run.steps={2 * RESTARTS}"])
    killing = itertools.cycle([signal.SIGKILL, signal.SIGTERM])
    for number, how in zip(range(1, RESTARTS + 1), killing, strict=False):
        up.until(f"step {2 * number - 1:>3}/")
        server = server_of(up)
        server.send_signal(how)
        up.until("nats-server has died and is started again", number)
    summary = up.end()
    book = read_logbook(up.folder)
    check(book)
    assert summary["steps"] == 2 * RESTARTS
    assert sum(summary["restarts"].values()) == 0, "a role died of it"
    # A rollout that was acknowledged and lost would leave its group open for ever.
    stored = {(rollout.group, rollout.member) for rollout in book.rollouts.values()}
    settled = {group.group for step in book.steps for group in step.groups} | {each.group for each in book.closed}
    size = book.config.trainer.group_size
    assert stored >= {(group, member) for group in settled for member in range(size)}
    left_open = set(range(max(settled))) - settled
    assert len(left_open) < (book.config.policy.max_off_policy_steps + 1) * book.config.trainer.groups_per_step
