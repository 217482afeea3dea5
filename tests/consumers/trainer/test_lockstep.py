"""Two real ranks that notice what becomes of the other: stopped, killed, asked to end, or through in order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.consumers.trainer import lockstep_rank

PROGRAM = Path(lockstep_rank.__file__)
ROOT = PROGRAM.parents[3]
pytestmark = pytest.mark.timeout(200)
Rank = subprocess.Popen[str]


@contextmanager
def two_ranks(silent_s: float = 60.0) -> Iterator[list[Rank]]:
    """Rank 0 and rank 1, which have met. ``silent_s``: after which one is given up."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listening.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(silent_s)],
            env=os.environ | place | {"PYTHONPATH": str(ROOT), "RANK": str(rank)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        yield ranks
    finally:
        for rank in ranks:
            with rank:
                rank.kill()


def end_of(rank: Rank) -> tuple[int, str]:
    """Exit code, and what it has told."""
    assert rank.stderr is not None
    told = rank.stderr.read()
    return rank.wait(), told


def test_a_rank_that_is_silent_ends_the_other() -> None:
    with two_ranks(silent_s=2.0) as (leader, follower):
        follower.send_signal(signal.SIGSTOP)
        code, told = end_of(leader)
    assert code == 1
    assert "rank 1 gives no sign of life for 2 s: this rank ends" in told


def test_a_killed_rank_0_ends_the_other() -> None:
    with two_ranks() as (leader, follower):
        leader.kill()
        code, told = end_of(follower)
    assert code == 1
    assert "rank 0 has gone" in told


def test_who_is_asked_to_end_waits_for_word_of_rank_0() -> None:
    with two_ranks() as (leader, follower):
        follower.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            follower.wait(timeout=1.5)
        assert leader.stdin is not None
        leader.stdin.write("\n")
        leader.stdin.flush()
        assert end_of(leader)[0] == end_of(follower)[0] == 0
