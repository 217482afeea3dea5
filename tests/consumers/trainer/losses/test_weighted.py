"""The loss that truncates ratios as weights, against numbers worked out by hand and against its formula."""

import math

import pytest
from hypothesis import given, settings

from consumers.trainer.losses.weighted import cispo
from tests.consumers.trainer.losses.token_rows import rows, tokens_of, values_and_gradient

HIGH = 0.28


def test_a_hand_computed_case() -> None:
    # Probabilities new / old: 0.5 / 0.4 = 1.25, within; 0.8 / 0.4 = 2, truncated to 1.28; 0.1 / 0.4 = 1/4, not bounded.
    cases = [(0.5, 0.4, 2.0), (0.8, 0.4, 2.0), (0.8, 0.4, -1.0), (0.1, 0.4, -2.0)]
    tokens = tokens_of([(math.log(new), math.log(old), advantage) for new, old, advantage in cases])
    found = cispo(tokens, clip_high=HIGH)
    values, gradients = values_and_gradient(found, tokens)
    # -w A log policy: log 0.5 = -0.693147, log 0.8 = -0.223144, log 0.1 = -2.302585.
    assert values == pytest.approx([1.732868, 0.571248, -0.285624, -1.151293], rel=1e-5)
    # The weight is held constant: -w A, also where it is truncated.
    assert gradients == pytest.approx([-2.5, -2.56, 1.28, 0.5], rel=1e-5)
    assert found.bounded_N.tolist() == [False, True, True, False]


@settings(deadline=None)
@given(rows)
def test_every_token_keeps_a_gradient(rows: list[tuple[float, float, float]]) -> None:
    tokens = tokens_of(rows)
    weights = [min(math.exp(new - old), 1 + HIGH) for new, old, _ in rows]
    values, gradients = values_and_gradient(cispo(tokens, clip_high=HIGH), tokens)
    expected = [-weight * advantage for weight, (_, _, advantage) in zip(weights, rows, strict=True)]
    assert gradients == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert values == pytest.approx([e * new for e, (new, _, _) in zip(expected, rows, strict=True)], rel=1e-4, abs=1e-4)


def test_a_hopeless_ratio_stays_a_number() -> None:
    tokens = tokens_of([(0.0, -500.0, 0.0), (0.0, -500.0, -1.0), (-500.0, 0.0, 1.0)])
    values, gradients = values_and_gradient(cispo(tokens, clip_high=HIGH), tokens)
    assert all(map(math.isfinite, values + gradients))
