from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.staleness import FutureVersion, fresh, lags

versions = st.lists(st.integers(0, 20), min_size=1, max_size=30).map(lambda values: np.array(sorted(values), np.int32))


def test_lag_is_the_step_s_own_weights_less_the_token_s() -> None:
    assert lags(np.array([3, 4, 5], np.int32), step=6).tolist() == [2, 1, 0]


def test_a_version_from_the_future_is_an_error() -> None:
    with pytest.raises(FutureVersion, match="weights 6, but step 6 updates 5"):
        lags(np.array([5, 6], np.int32), step=6)


@given(versions, st.integers(0, 4))
def test_no_token_older_than_the_bound_is_fresh(versions_S: np.ndarray, bound: int) -> None:
    step = int(versions_S.max()) + 1
    for stale in ("drop", "mask"):
        taken = fresh(versions_S, step=step, bound=bound, stale=stale)
        assert (step - 1 - versions_S[taken] <= bound).all()


@given(versions, st.integers(0, 4))
def test_mask_takes_every_fresh_token_and_drop_all_or_nothing(versions_S: np.ndarray, bound: int) -> None:
    step = int(versions_S.max()) + 1
    within = step - 1 - versions_S <= bound
    assert (fresh(versions_S, step=step, bound=bound, stale="mask") == within).all()
    dropped = fresh(versions_S, step=step, bound=bound, stale="drop")
    assert dropped.all() == within.all()
    assert dropped.any() == within.all()


def test_bound_zero_is_on_policy_by_version() -> None:
    assert fresh(np.array([4, 5, 5], np.int32), step=6, bound=0, stale="mask").tolist() == [False, True, True]
