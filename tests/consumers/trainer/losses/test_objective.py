"""A step's loss from its tokens: aggregation, importance weights and KL, against numbers worked out by hand."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.trainer.losses import Tokens
from consumers.trainer.losses.clipped import grpo, gspo
from consumers.trainer.losses.masked import dppo, ipo
from consumers.trainer.losses.objective import divisor, objective
from consumers.trainer.losses.registry import Aggregation
from consumers.trainer.losses.weighted import cispo
from tests.consumers.trainer.losses.token_rows import gradient, no_tokens, rows, tokens_of

CLIPPED = partial(grpo, clip_low=0.2, clip_high=0.28)
EACH = {
    "grpo": CLIPPED,
    "gspo": partial(gspo, clip_low=0.2, clip_high=0.28),
    "cispo": partial(cispo, clip_high=0.28),
    "dppo": partial(dppo, divergence_bound=0.2),
    "ipo": partial(ipo, divergence_bound=0.2),
}
AGGREGATIONS: list[Aggregation] = ["token_mean", "sequence_mean", "constant"]
# On policy, so that each ratio is 1: a document of three tokens with advantage 1, one of a single token with -2.
ON_POLICY = [(-1.0, -1.0, 1.0), (-2.0, -2.0, 1.0), (-0.5, -0.5, 1.0), (-1.5, -1.5, -2.0)]


@pytest.mark.parametrize(
    ("aggregation", "loss", "gradients"),
    [
        # (-1 - 1 - 1 + 2) / 4
        ("token_mean", -0.25, [-0.25, -0.25, -0.25, 0.5]),
        # (-(1 + 1 + 1) / 3 + 2) / 2
        ("sequence_mean", 0.5, [-1 / 6, -1 / 6, -1 / 6, 1.0]),
        # ((-3) / 10 + 2 / 10) / 2
        ("constant", -0.05, [-0.05, -0.05, -0.05, 0.1]),
    ],
)
def test_tokens_are_added_up_as_asked(aggregation: Aggregation, loss: float, gradients: list[float]) -> None:
    tokens = tokens_of(ON_POLICY, [0, 0, 0, 1])
    total = objective(tokens, CLIPPED, aggregation=aggregation).loss
    found = total / divisor(aggregation, tokens=4, documents=2, constant=10)
    assert found.item() == pytest.approx(loss)
    assert gradient(found, tokens) == pytest.approx(gradients)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(rows, min_size=2, max_size=6), st.sampled_from(AGGREGATIONS), st.sampled_from(sorted(EACH)), st.booleans()
)
def test_it_does_not_matter_how_documents_are_split(
    documents: list[list[tuple[float, float, float]]], aggregation: Aggregation, name: str, capped: bool
) -> None:
    asked = {"aggregation": aggregation, "tis_cap": 2.0 if capped else None}

    def sums(some: list[list[tuple[float, float, float]]]) -> tuple[list[float], list[float]]:
        numbers = [number for number, document in enumerate(some) for _ in document]
        tokens = tokens_of([row for document in some for row in document], numbers)
        found = objective(tokens, EACH[name], **asked)  # type: ignore[arg-type]
        slopes = gradient(found.loss, tokens)
        return [float(value.detach()) for value in found], slopes

    whole, gradients = sums(documents)
    parts = [sums([document]) for document in documents]
    added = [sum(values) for values in zip(*(part for part, _ in parts), strict=True)]
    added[-1] = max(part[-1] for part, _ in parts)  # the greatest ratio is no sum
    assert added == pytest.approx(whole, rel=1e-4, abs=1e-3)
    assert [slope for _, slopes in parts for slope in slopes] == pytest.approx(gradients, rel=1e-4, abs=1e-4)


def test_figures_are_sums_over_the_ratios_to_the_policy_that_sampled() -> None:
    # Ratios 2, 1 and 1/2. log 2 = 0.693147.
    tokens = tokens_of([(math.log(0.4), math.log(0.2), 1.0), (-1.0, -1.0, 1.0), (math.log(0.2), math.log(0.4), -1.0)])
    for cap in (None, 1.5):
        found = objective(tokens, CLIPPED, aggregation="token_mean", tis_cap=cap)
        assert found.ratio.item() == pytest.approx(3.5)
        assert found.ratio_squared.item() == pytest.approx(5.25)
        assert found.ratio_max.item() == pytest.approx(2.0)
        # r - 1 - log r: (2 - 1 - 0.693147) + 0 + (0.5 - 1 + 0.693147)
        assert found.kl.item() == pytest.approx(0.5, rel=1e-5)
        assert found.kl_start.item() == 0
    assert objective(tokens, CLIPPED, aggregation="token_mean").bounded.item() == 2
    assert objective(tokens, CLIPPED, aggregation="token_mean", tis_cap=1.5).bounded.item() == 1


@pytest.mark.parametrize("name", ["grpo", "gspo", "dppo", "cispo"])
def test_truncated_importance_sampling_of_a_hand_computed_case(name: str) -> None:
    # Ratios 1.25, 3 (capped at 2) and 1/2; none moved by more than 0.2.
    cases = [(0.5, 0.4, 2.0), (0.15, 0.05, 2.0), (0.1, 0.2, -1.0)]
    tokens = tokens_of([(math.log(new), math.log(old), advantage) for new, old, advantage in cases])
    found = objective(tokens, EACH[name], aggregation="token_mean", tis_cap=2.0)
    # The loss's own ratio is 1, so each gradient is -min(r, 2) A, whatever the loss.
    assert gradient(found.loss, tokens) == pytest.approx([-2.5, -4.0, 0.5], rel=1e-5)
    assert found.bounded.item() == 1


@settings(deadline=None)
@given(rows)
def test_grpo_under_truncated_importance_sampling_has_the_gradient_of_cispo(
    rows: list[tuple[float, float, float]],
) -> None:
    tokens = tokens_of(rows)
    found = gradient(objective(tokens, CLIPPED, aggregation="token_mean", tis_cap=2.0).loss, tokens)
    same = gradient(cispo(tokens, clip_high=1.0).loss_N.sum(), tokens)
    assert found == pytest.approx(same, rel=1e-5, abs=1e-6)


def test_masks_hold_under_truncated_importance_sampling() -> None:
    # The first moved up by 0.4: dppo and ipo mask it; the second did too, and must come back: ipo alone masks it.
    tokens = tokens_of([(math.log(0.8), math.log(0.4), 1.0), (math.log(0.8), math.log(0.4), -1.0)])
    slopes = {
        name: gradient(objective(tokens, EACH[name], aggregation="token_mean", tis_cap=10.0).loss, tokens)
        for name in ("dppo", "ipo", "grpo")
    }
    assert slopes["dppo"] == pytest.approx([0.0, 2.0], rel=1e-5)
    assert slopes["ipo"] == [0.0, 0.0]
    assert slopes["grpo"] == pytest.approx([-2.0, 2.0], rel=1e-5)


def test_kl_to_the_start_of_a_hand_computed_case() -> None:
    # Without advantages only the KL is left. d = log start - log policy: log 2 and -log 2.
    tokens = tokens_of([(math.log(0.2), math.log(0.2), 0.0), (math.log(0.4), math.log(0.4), 0.0)])
    start = torch.tensor([math.log(0.4), math.log(0.2)])
    found = objective(tokens, CLIPPED, aggregation="token_mean", kl_coef=0.5, start_N=start)
    # e^d - 1 - d: 2 - 1 - 0.693147 and 0.5 - 1 + 0.693147, together 0.5.
    assert found.kl_start.item() == pytest.approx(0.5, rel=1e-5)
    assert found.loss.item() == pytest.approx(0.25, rel=1e-5)
    # Its derivative by log policy is 1 - e^d: -1 and 0.5.
    assert gradient(found.loss, tokens) == pytest.approx([-0.5, 0.25], rel=1e-5)


def test_kl_to_the_start_is_a_part_of_each_token() -> None:
    tokens = tokens_of(ON_POLICY, [0, 0, 0, 1])
    start = tokens.logprobs_N.detach() + math.log(2.0)
    by_token = objective(tokens, CLIPPED, aggregation="sequence_mean", kl_coef=1.0, start_N=start)
    without = objective(tokens, CLIPPED, aggregation="sequence_mean")
    # 0.306853 a token, three of them in a document of three and one in one of one.
    assert (by_token.loss - without.loss).item() == pytest.approx(2 * 0.306853, rel=1e-4)


@settings(deadline=None)
@given(rows)
def test_kl_estimates_are_never_negative_and_zero_on_policy(rows: list[tuple[float, float, float]]) -> None:
    tokens = tokens_of(rows)
    assert objective(tokens, CLIPPED, aggregation="token_mean").kl.item() >= -1e-6  # rounding
    own = tokens.logprobs_N.detach()
    same = objective(tokens._replace(behaviour_N=own), CLIPPED, aggregation="token_mean", kl_coef=1.0, start_N=own)
    assert same.kl.item() == same.kl_start.item() == 0
    assert same.ratio.item() == same.ratio_squared.item() == len(rows)
    assert same.ratio_max.item() == 1


def test_kl_estimate_is_unbiased() -> None:
    old, new = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    of_each = torch.stack(
        [
            objective(tokens_of([(math.log(n), math.log(o), 1.0)]), CLIPPED, aggregation="token_mean").kl
            for n, o in zip(new.tolist(), old.tolist(), strict=True)
        ]
    )
    assert float((old * of_each).sum()) == pytest.approx(float((old * (old / new).log()).sum()), rel=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", sorted(EACH))
def test_no_token_gives_zero(name: str, aggregation: Aggregation) -> None:
    tokens: Tokens = no_tokens()
    found = objective(tokens, EACH[name], aggregation=aggregation, tis_cap=2.0, kl_coef=1.0, start_N=torch.zeros(0))
    assert [value.item() for value in found] == [0.0] * 7
    assert gradient(found.loss, tokens) == []
