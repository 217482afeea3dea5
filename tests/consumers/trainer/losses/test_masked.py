"""Losses that mask tokens whose probability moved too far, against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.trainer.losses.masked import dppo, ipo
from tests.consumers.trainer.losses.token_rows import rows, tokens_of, values_and_gradient

# Probabilities new and old, advantage. Moved by 0.1; up by 0.4 with a good and a bad advantage; down by 0.4 with a bad
# and a good one; and a rare token whose ratio is 100 and which moved by 0.099.
CASES = [
    (0.5, 0.4, 1.0), (0.8, 0.4, 1.0), (0.8, 0.4, -1.0), (0.4, 0.8, -1.0), (0.4, 0.8, 1.0), (0.1, 0.001, 1.0),
]  # fmt: skip
TOKENS = [(math.log(new), math.log(old), advantage) for new, old, advantage in CASES]


def test_dppo_masks_what_would_move_on_outwards() -> None:
    tokens = tokens_of(TOKENS)
    found = dppo(tokens, divergence_bound=0.2)
    values, gradients = values_and_gradient(found, tokens)
    assert values == pytest.approx([-1.25, 0.0, 2.0, 0.0, -0.5, -100.0], rel=1e-4)
    assert gradients == pytest.approx([-1.25, 0.0, 2.0, 0.0, -0.5, -100.0], rel=1e-4)
    assert found.bounded_N.tolist() == [False, True, False, True, False, False]


def test_ipo_masks_what_is_out_of_bounds_whichever_way_it_would_move() -> None:
    tokens = tokens_of(TOKENS)
    found = ipo(tokens, divergence_bound=0.2)
    values, gradients = values_and_gradient(found, tokens)
    assert values == pytest.approx([-1.25, 0.0, 0.0, 0.0, 0.0, -100.0], rel=1e-4)
    assert gradients == pytest.approx([-1.25, 0.0, 0.0, 0.0, 0.0, -100.0], rel=1e-4)
    assert found.bounded_N.tolist() == [False, True, True, True, True, False]


def test_what_moved_is_measured_from_the_policy_that_sampled() -> None:
    # Under truncated importance sampling the ratio is taken to the trainer's own policy; the mask is not.
    tokens = tokens_of(TOKENS)
    own = tokens._replace(old_N=tokens.logprobs_N.detach())
    for loss in (dppo, ipo):
        expected = loss(tokens, divergence_bound=0.2).bounded_N
        found = loss(own, divergence_bound=0.2)
        assert torch.equal(found.bounded_N, expected)
        advantages = own.advantages_N.masked_fill(expected, 0.0)
        torch.testing.assert_close(found.loss_N, -advantages)


@settings(deadline=None)
@given(rows, st.floats(0.01, 1.0))
def test_dppo_masks_no_token_that_ipo_trains(rows: list[tuple[float, float, float]], bound: float) -> None:
    tokens = tokens_of(rows)
    inner, outer = dppo(tokens, divergence_bound=bound), ipo(tokens, divergence_bound=bound)
    assert not (inner.bounded_N & ~outer.bounded_N).any()
    assert torch.equal(inner.loss_N[~outer.bounded_N], outer.loss_N[~outer.bounded_N])


def test_a_hopeless_ratio_stays_a_number() -> None:
    tokens = tokens_of([(0.0, -500.0, 0.0), (0.0, -500.0, -1.0), (-500.0, 0.0, 1.0)])
    for loss in (dppo, ipo):
        values, gradients = values_and_gradient(loss(tokens, divergence_bound=0.2), tokens)
        assert all(map(math.isfinite, values + gradients))
