"""A short trial of each run's life under fire; `make chaos` has the long ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.run import chaos
from tests.chaos.schedule import ROLES, Stop, kills, mixed, processes, stops
from tests.end_to_end.conftest import STAND_IN

STOP_S = 8.0
"""Longer than the heartbeats that a silent role has missed, and than the leases of a stopped generator."""


def test_the_schedule_is_seeded_and_spares_no_role() -> None:
    assert list(kills(25, 7)) == list(kills(25, 7)) != list(kills(25, 8))
    assert {kill.role for kill in kills(5, 7)} == set(ROLES)


def test_stops_are_seeded_and_spare_no_process() -> None:
    assert stops(3, 120.0, 7, "vllm") == stops(3, 120.0, 7, "vllm")
    assert len({stops(1, 120.0, seed, "vllm")[0].process for seed in range(50)}) == len(processes("vllm"))
    assert [stop.process for stop in stops(None, 5.0, 7, "stand-in")] == list(processes("stand-in"))
    assert len(stops(0, 120.0, 7, "vllm")) == 0


@given(st.integers(0, 30), st.integers(0, 8))
def test_stops_lie_between_the_kills_in_their_order(kill_count: int, stop_count: int) -> None:
    some_kills, some_stops = list(kills(kill_count, 1)), stops(stop_count, 5.0, 1, "vllm")
    schedule = mixed(some_kills, some_stops)
    assert [act for act in schedule if isinstance(act, Stop)] == some_stops
    assert [act for act in schedule if not isinstance(act, Stop)] == some_kills
    if stop_count == 1:
        assert schedule.index(some_stops[0]) == kill_count // 2


@pytest.mark.timeout(600)
def test_a_run_lives_through_the_death_of_each_of_its_parts(model: Path, tmp_path: Path) -> None:
    found = chaos(tmp_path, model, list(kills(len(ROLES), 3)), engine=STAND_IN)
    assert sum(found["kills"].values()) == len(ROLES)
    assert found["identical"]
    assert found["rollouts_in_two_steps"] == 0


@pytest.mark.timeout(600)
def test_a_run_goes_on_after_each_of_its_processes_was_stopped_and_status_says_which_and_since_when(
    model: Path, tmp_path: Path
) -> None:
    found = chaos(tmp_path, model, stops(None, STOP_S, 3, "stand-in"), engine=STAND_IN)
    assert found["stops"] == Counter(processes("stand-in"))
    assert len(found["silence_told_s"]) == len(processes("stand-in")), "each was told while it lasted"
    assert found["identical"]


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_run_goes_on_after_its_engine_was_stopped(model: Path, tmp_path: Path) -> None:
    found = chaos(tmp_path, model, [Stop("engine-0", 0.5, STOP_S)], engine="vllm")
    assert found["stops"] == {"engine-0": 1}
    assert found["identical"]
