"""Losses that clip, against numbers worked out by hand and against their formulas."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from consumers.trainer.losses.clipped import dapo, dr_grpo, grpo, gspo
from consumers.trainer.losses.ratios import MAX_LOG_RATIO
from tests.consumers.trainer.losses.token_rows import gradient, no_tokens, rows, tokens_of, values_and_gradient

LOW, HIGH = 0.2, 0.28
LN2 = 0.6931472
"""log 2: a token at -LN2 has the probability 1/2."""


@pytest.mark.parametrize("loss", [grpo, dapo, dr_grpo])
def test_a_hand_computed_case(loss: object) -> None:
    # Probabilities new / old: 0.5 / 0.4 = 1.25 and within; 0.6 / 0.4 = 1.5, above, with a good and with a bad
    # advantage; 0.3 / 0.4 = 0.75, below, with a bad and with a good one.
    cases = [(0.5, 0.4, 2.0), (0.6, 0.4, 2.0), (0.6, 0.4, -2.0), (0.3, 0.4, -1.0), (0.3, 0.4, 1.0)]
    tokens = tokens_of([(math.log(new), math.log(old), advantage) for new, old, advantage in cases])
    found = loss(tokens, clip_low=LOW, clip_high=HIGH)  # type: ignore[operator]
    values, gradients = values_and_gradient(found, tokens)
    # -1.25 * 2; clipped at 1.28: -1.28 * 2; not clipped, for it must come back: 1.5 * 2; clipped at 0.8: 0.8; -0.75.
    assert values == pytest.approx([-2.5, -2.56, 3.0, 0.8, -0.75], rel=1e-5)
    # d(-r A) / d(log policy) = -r A where the loss is not clipped, and nothing where it is.
    assert gradients == pytest.approx([-2.5, 0.0, 3.0, 0.0, -0.75], rel=1e-5)
    assert found.bounded_N.tolist() == [False, True, False, True, False]


@settings(deadline=None)
@given(rows)
def test_grpo_is_its_formula_token_by_token(rows: list[tuple[float, float, float]]) -> None:
    expected = []
    for new, old, advantage in rows:
        ratio = math.exp(new - old)
        assume(min(abs(ratio - 1 + LOW), abs(ratio - 1 - HIGH)) > 1e-5)  # rounding may decide at the bound
        expected.append(-min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage))
    tokens = tokens_of(rows)
    found = grpo(tokens, clip_low=LOW, clip_high=HIGH)
    values, gradients = values_and_gradient(found, tokens)
    assert values == pytest.approx(expected, rel=1e-4, abs=1e-4)
    for value, slope, bounded in zip(values, gradients, found.bounded_N.tolist(), strict=True):
        assert slope == (0.0 if bounded else pytest.approx(value, rel=1e-4, abs=1e-4))


def test_gspo_of_a_hand_computed_case() -> None:
    # Two documents. The first has the ratios 2 and 1/8: together 1/4, as a geometric mean 1/2. The second has 2.
    tokens = tokens_of([(-LN2, -2 * LN2, 1.0), (-4 * LN2, -LN2, 1.0), (-LN2, -2 * LN2, -3.0)], [0, 0, 1])
    found = gspo(tokens, clip_low=0.6, clip_high=1.5)
    assert found.loss_N.tolist() == pytest.approx([-0.5, -0.5, 6.0], rel=1e-5)
    # By document: L = -s A, dL / d(log policy of a token) = -s A / length.
    by_document = found.loss_N / tokens.lengths_D[tokens.documents_N]
    assert by_document.sum().item() == pytest.approx(-0.5 + 6.0, rel=1e-5)
    assert gradient(by_document.sum(), tokens) == pytest.approx([-0.25, -0.25, 6.0], rel=1e-5)
    assert not found.bounded_N.any()


def test_gspo_clips_a_document_as_a_whole() -> None:
    rows = [(-LN2, -2 * LN2, 1.0), (-4 * LN2, -LN2, 1.0), (-LN2, -2 * LN2, 1.0), (-LN2, -2 * LN2, -1.0)]
    tokens = tokens_of(rows, [0, 0, 1, 2])
    found = gspo(tokens, clip_low=0.2, clip_high=0.28)
    # The first document's ratio is 1/2, below the bound, but its advantage is good. The second's is 2, and good.
    assert found.loss_N.tolist() == pytest.approx([-0.5, -0.5, -1.28, 2.0], rel=1e-5)
    assert gradient(found.loss_N.sum(), tokens) == pytest.approx([-0.5, -0.5, 0.0, 2.0], rel=1e-5)
    assert found.bounded_N.tolist() == [False, False, True, False]


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=5))
def test_gspo_does_not_see_other_documents(documents: list[list[tuple[float, float, float]]]) -> None:
    together = tokens_of(
        [row for document in documents for row in document],
        [number for number, document in enumerate(documents) for _ in document],
    )
    apart = torch.cat([gspo(tokens_of(document), clip_low=LOW, clip_high=HIGH).loss_N for document in documents])
    found = gspo(together, clip_low=LOW, clip_high=HIGH).loss_N
    torch.testing.assert_close(found, apart, rtol=1e-4, atol=1e-4)


@settings(deadline=None)
@given(rows)
def test_gspo_of_one_token_is_grpo(rows: list[tuple[float, float, float]]) -> None:
    tokens = tokens_of(rows, list(range(len(rows))))
    expected = values_and_gradient(grpo(tokens, clip_low=LOW, clip_high=HIGH), tokens)
    found = values_and_gradient(gspo(tokens, clip_low=LOW, clip_high=HIGH), tokens)
    assert found[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-4)
    assert found[1] == pytest.approx(expected[1], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("loss", [grpo, gspo])
def test_a_hopeless_ratio_stays_a_number(loss: object) -> None:
    tokens = tokens_of([(0.0, -500.0, 0.0), (0.0, -500.0, -1.0), (-500.0, 0.0, 1.0)], [0, 1, 2])
    found = loss(tokens, clip_low=LOW, clip_high=HIGH)  # type: ignore[operator]
    values, gradients = values_and_gradient(found, tokens)
    assert all(map(math.isfinite, values + gradients))
    assert max(values) == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-5)


@pytest.mark.parametrize("loss", [grpo, gspo])
def test_no_token_has_no_loss(loss: object) -> None:
    tokens = no_tokens()
    assert values_and_gradient(loss(tokens, clip_low=LOW, clip_high=HIGH), tokens) == ([], [])  # type: ignore[operator]
