from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.staleness import FutureVersion, fresh, lags

VERSIONS = st.lists(st.integers(0, 20), min_size=1, max_size=30).map(sorted)


def test_lag_is_the_step_s_own_weights_less_the_token_s() -> None:
    assert lags([3, 4, 5], step=6) == [2, 1, 0]


def test_a_version_from_the_future_is_an_error() -> None:
    with pytest.raises(FutureVersion, match="weights 6, but step 6 updates 5"):
        lags([5, 6], step=6)


@given(VERSIONS, st.integers(0, 4))
def test_no_token_older_than_the_bound_is_fresh(versions: list[int], bound: int) -> None:
    step = max(versions) + 1
    for stale in ("drop", "mask"):
        taken = fresh(versions, step=step, bound=bound, stale=stale)
        assert all(step - 1 - version <= bound for version, fine in zip(versions, taken, strict=True) if fine)


@given(VERSIONS, st.integers(0, 4))
def test_mask_takes_every_fresh_token_and_drop_all_or_nothing(versions: list[int], bound: int) -> None:
    step = max(versions) + 1
    within = [step - 1 - version <= bound for version in versions]
    assert fresh(versions, step=step, bound=bound, stale="mask") == within
    dropped = fresh(versions, step=step, bound=bound, stale="drop")
    assert dropped == [all(within)] * len(versions)


def test_bound_zero_is_on_policy_by_version() -> None:
    assert fresh([4, 5, 5], step=6, bound=0, stale="mask") == [False, True, True]
