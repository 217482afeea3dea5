"""A short trial of each run's life under fire; `make chaos` has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import chaos
from tests.chaos.schedule import ROLES, kills
from tests.end_to_end.conftest import STAND_IN


def test_the_schedule_is_seeded_and_spares_no_role() -> None:
    assert list(kills(25, 7)) == list(kills(25, 7)) != list(kills(25, 8))
    assert {kill.role for kill in kills(5, 7)} == set(ROLES)


@pytest.mark.timeout(600)
def test_a_run_lives_through_the_death_of_each_of_its_parts(model: Path, tmp_path: Path) -> None:
    found = chaos(tmp_path, model, count=len(ROLES), seed=3, engine=STAND_IN)
    assert sum(found["kills"].values()) == len(ROLES)
    assert found["identical"]
    assert found["rollouts_in_two_steps"] == 0
