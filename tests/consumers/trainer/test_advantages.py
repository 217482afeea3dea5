from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.advantages import advantages

rewards = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=16)


def test_std_divides_the_centred_rewards() -> None:
    values = advantages([1.0, 0.0, 0.0, 1.0], "std")
    assert values == pytest.approx(np.array([0.5, -0.5, -0.5, 0.5]) / (np.sqrt(1 / 3) + 0.01))


def test_mean_only_centres() -> None:
    assert advantages([1.0, 0.0, 0.5], "mean").tolist() == [0.5, -0.5, 0.0]


def test_leaving_one_out_compares_with_the_others() -> None:
    # Against the means of the others: 1 - 0.25, 0 - 0.75, 0.5 - 0.5.
    assert advantages([1.0, 0.0, 0.5], "loo").tolist() == [0.75, -0.75, 0.0]
    assert advantages([1.0, 0.0], "loo").tolist() == [1.0, -1.0]


@given(rewards)
def test_advantages_sum_to_zero_and_keep_the_order(values: list[float]) -> None:
    for kind in ("std", "mean", "loo"):
        result = advantages(values, kind)
        assert result.dtype == np.float32
        assert abs(float(result.sum())) < 1e-3 * max(1.0, float(np.abs(result).max()))
        assert (np.argsort(values, kind="stable") == np.argsort(result, kind="stable")).all() or len(
            set(result.tolist())
        ) < len(values)


@given(st.floats(-5, 5), st.integers(2, 16))
def test_a_group_that_agrees_has_no_advantage(reward: float, members: int) -> None:
    """Whatever rounding makes of their mean: that of three times 0.1 is not 0.1."""
    for kind in ("std", "mean", "loo"):
        assert not advantages([reward] * members, kind).any()


def test_one_reward_has_no_baseline() -> None:
    with pytest.raises(ValueError, match="two rewards"):
        advantages([1.0], "std")
