"""Admission as a function of the log: bounded staleness, no deadlock, one credit for each group."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers import Admission
from schemas import Control
from tests.examples import closed, step, trained_group


def admission(*, bound: int = 2, groups: int = 4, steps: int = 10, issued: int = 0) -> Admission:
    made = Admission(max_off_policy_steps=bound, groups_per_step=groups, steps=steps)
    made.issued = issued
    return made


def commit(number: int, groups: list[int]) -> object:
    return step(number=number, groups=[trained_group(group=group) for group in groups])


def test_fewer_than_bound_plus_one_batches_are_open() -> None:
    admitted = admission()
    while admitted.least_version() is not None:
        admitted.issued += 1
    assert admitted.open == 3 * 4


def test_a_closed_group_is_credited_at_once() -> None:
    admitted = admission(issued=12)
    assert admitted.least_version() is None
    admitted.apply(closed(group=5))
    assert admitted.least_version() == 0


def test_a_group_is_credited_once() -> None:
    admitted = admission(issued=12)
    for _ in range(3):
        admitted.apply(closed(group=5))
    admitted.apply(commit(1, [5, 6]))
    assert admitted.open == 10


def test_a_closed_group_that_was_never_issued_gives_no_credit() -> None:
    admitted = admission(issued=12)
    admitted.apply(closed(group=1_000_000))
    assert admitted.open == 12
    assert admitted.least_version() is None


def test_the_last_steps_issue_only_what_they_need() -> None:
    admitted = admission(steps=10, issued=36)
    admitted.apply(commit(9, list(range(36))))
    while admitted.least_version() is not None:
        admitted.issued += 1
    assert admitted.open == 4


def test_nothing_is_issued_when_the_run_is_finished() -> None:
    admitted = admission(steps=1, issued=4)
    admitted.apply(commit(1, [0, 1, 2, 3]))
    assert admitted.finished
    assert admitted.least_version() is None


def test_pause_holds_and_resume_goes_on() -> None:
    admitted = admission()
    admitted.apply(Control(run="demo", action="pause"))
    assert admitted.least_version() is None
    admitted.apply(Control(run="demo", action="resume"))
    assert admitted.least_version() == 0


def test_a_limit_lowers_the_bound_on_open_groups() -> None:
    admitted = admission(issued=2)
    admitted.apply(Control(run="demo", action="limit", limit=2))
    assert admitted.least_version() is None


def test_least_version_follows_the_step_that_could_train_the_group() -> None:
    admitted = admission(bound=1, groups=4, issued=12)
    admitted.apply(commit(1, [0, 1, 2, 3]))
    admitted.apply(commit(2, [4, 5, 6, 7]))
    # Two steps are committed and four groups are open: this one is for step 4, from weights 3, at most 1 older.
    assert admitted.least_version() == 2


@given(
    bound=st.integers(0, 3),
    groups=st.integers(1, 6),
    degenerate=st.floats(0, 0.7),
    seed=st.integers(0, 2**16),
)
def test_the_run_never_deadlocks_and_staleness_stays_bounded(
    bound: int, groups: int, degenerate: float, seed: int
) -> None:
    """A model of the loop: groups are played at once by the newest weights, some of them teach nothing."""
    choice, steps = random.Random(seed), 25
    admitted = admission(bound=bound, groups=groups, steps=steps)
    queue: list[tuple[int, int]] = []
    batch: list[tuple[int, int]] = []
    while not admitted.finished:
        moved = False
        while (least := admitted.least_version()) is not None:
            assert least <= admitted.committed, "no engine could ever play it"
            queue.append((admitted.issued, admitted.committed))
            admitted.issued += 1
            moved = True
        while queue and len(batch) < groups:
            group, version = queue.pop(0)
            moved = True
            if choice.random() < degenerate:
                admitted.apply(closed(group=group))
            else:
                assert admitted.committed - version <= bound
                batch.append((group, version))
        if len(batch) == groups:
            admitted.apply(commit(admitted.committed + 1, [group for group, _ in batch]))
            batch.clear()
            moved = True
        assert moved, "deadlock"


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_open_groups_at_the_bound_admit_nothing(bound: int) -> None:
    admitted = admission(bound=bound, groups=4, issued=(bound + 1) * 4)
    assert admitted.least_version() is None
    admitted.issued -= 1
    assert admitted.least_version() is not None
