"""Means, intervals and pass@k, against values worked out by hand and against brute force."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.estimate import estimate, pass_at, wilson

shares = st.floats(0, 1)
figures = st.floats(-100, 100)


def test_wilson_s_interval_is_that_of_the_text_books() -> None:
    """E. B. Wilson's formula for 8 of 10, and for 10 of 10, where the normal interval has no width."""
    assert wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(0.0, 300) == pytest.approx((0.0, 0.01264), abs=1e-5)


@given(shares, st.integers(1, 10_000))
def test_wilson_s_interval_holds_the_share_within_0_and_1(share: float, trials: int) -> None:
    low, high = wilson(share, trials)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1


@given(shares, st.integers(1, 1000))
def test_wilson_s_interval_narrows_with_more_trials_and_mirrors_at_one_half(share: float, trials: int) -> None:
    low, high = wilson(share, trials)
    less, more = wilson(share, 4 * trials)
    assert more - less < high - low
    assert wilson(1 - share, trials) == pytest.approx((1 - high, 1 - low))


def test_figures_of_0_and_1_get_wilson_s_interval_over_tasks() -> None:
    found = estimate([[1.0]] * 8 + [[0.0]] * 2)
    assert (found.mean, found.method) == (0.8, "wilson")
    assert (found.low, found.high) == pytest.approx(wilson(0.8, 10))


def test_several_plays_of_a_task_are_no_further_tasks() -> None:
    often, once = estimate([[1.0] * 50, [0.0] * 50] * 5), estimate([[1.0], [0.0]] * 5)
    assert often == once


def test_other_figures_get_the_normal_interval_of_the_task_means() -> None:
    """Task means 1, 2, 3, 6: mean 3, variance 14/3, standard error sqrt(7/6) = 1.0801."""
    found = estimate([[0.0, 2.0], [2.0], [3.0, 3.0], [6.0]])
    assert (found.mean, found.method) == (3.0, "normal")
    assert (found.low, found.high) == pytest.approx((3 - 1.959964 * 1.0801, 3 + 1.959964 * 1.0801), abs=1e-3)


def test_one_task_alone_says_nothing_of_the_spread() -> None:
    found = estimate([[0.5, 0.7]])
    assert (found.mean, found.low, found.high) == (pytest.approx(0.6), None, None)


@given(st.lists(st.lists(figures, min_size=1, max_size=4), min_size=2, max_size=20))
def test_an_interval_is_centred_where_it_is_normal_and_holds_the_mean(tasks: list[list[float]]) -> None:
    found = estimate(tasks)
    assert found.mean == pytest.approx(fmean(fmean(plays) for plays in tasks))
    assert found.low is not None
    assert found.high is not None
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    if found.method == "normal":
        assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_pass_at_k_worked_out_by_hand() -> None:
    """2 of 4 pass: of the 6 pairs 1 holds no pass; so pass@2 = 5/6. pass@1 is the share, pass@3 is certain."""
    assert pass_at(1, [(4, 2)]) == pytest.approx(1 / 2)
    assert pass_at(2, [(4, 2)]) == pytest.approx(5 / 6)
    assert pass_at(3, [(4, 2)]) == 1.0
    assert pass_at(2, [(4, 2), (4, 0)]) == pytest.approx(5 / 12)


def test_a_task_that_was_played_less_than_k_times_does_not_count() -> None:
    assert pass_at(4, [(4, 4), (3, 0)]) == 1.0
    assert pass_at(5, [(4, 4), (3, 0)]) is None


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_choices_of_k_plays_that_hold_a_pass(case: tuple[int, int, int]) -> None:
    n, passed, k = case
    choices = list(itertools.combinations([True] * passed + [False] * (n - passed), k))
    assert pass_at(k, [(n, passed)]) == pytest.approx(sum(map(any, choices)) / len(choices))
