"""The losses against their formulas, worked out token by token in numpy, and their gradients at the bounds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from consumers.trainer.loss import MAX_LOG_RATIO, grpo, policy_loss, reinforce, token_logprobs

LOW, HIGH = 0.2, 0.28
logprobs = st.floats(-9, 0, width=32)
tokens = st.lists(st.tuples(logprobs, logprobs, st.floats(-3, 3, width=32)), min_size=1, max_size=20)


def columns(rows: list[tuple[float, float, float]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    new, old, advantage = (torch.tensor(column, dtype=torch.float32) for column in zip(*rows, strict=True))
    return new.requires_grad_(), old, advantage


def gradient(loss: torch.Tensor, new: torch.Tensor) -> list[float]:
    return torch.autograd.grad(loss, new)[0].tolist()  # type: ignore[no-any-return]


@settings(deadline=None)
@given(tokens)
def test_grpo_is_the_sum_of_its_tokens(rows: list[tuple[float, float, float]]) -> None:
    new, old, advantage = columns(rows)
    expected, clipped = 0.0, 0
    for n, o, a in rows:
        ratio = math.exp(n - o)
        assume(min(abs(ratio - 1 + LOW), abs(ratio - 1 - HIGH)) > 1e-5)  # rounding may decide at the bound
        expected -= min(ratio * a, min(max(ratio, 1 - LOW), 1 + HIGH) * a)
        clipped += (ratio > 1 + HIGH and a > 0) or (ratio < 1 - LOW and a < 0)
    sums = grpo(new, old, advantage, clip_low=LOW, clip_high=HIGH)
    assert sums.loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert int(sums.clipped) == clipped


@settings(deadline=None)
@given(tokens)
def test_reinforce_is_the_sum_of_its_tokens(rows: list[tuple[float, float, float]]) -> None:
    new, old, advantage = columns(rows)
    weights = [min(math.exp(n - o), 1 + HIGH) for n, o, _ in rows]
    sums = reinforce(new, old, advantage, clip_high=HIGH)
    expected = -sum(w * a * n for w, (n, _, a) in zip(weights, rows, strict=True))
    assert sums.loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-3)
    # The weight is a constant: the gradient of each token is -weight times advantage, bounded or not.
    assert gradient(sums.loss, new) == pytest.approx(
        [-w * a for w, (_, _, a) in zip(weights, rows, strict=True)], rel=1e-4, abs=1e-5
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.27, 1.0, True),
        (1.29, 1.0, False),  # above the upper bound, better: nothing more to gain
        (1.29, -1.0, True),  # above it, worse: must come back
        (0.81, -1.0, True),
        (0.79, -1.0, False),  # below the lower bound, worse: nothing more to gain
        (0.79, 1.0, True),
    ],
)
def test_grpo_stops_a_token_beyond_its_bound_only(ratio: float, advantage: float, moves: bool) -> None:
    new, old, weight = columns([(-1.0 + math.log(ratio), -1.0, advantage)])
    sums = grpo(new, old, weight, clip_low=LOW, clip_high=HIGH)
    assert gradient(sums.loss, new) == pytest.approx([-ratio * advantage if moves else 0.0], rel=1e-5)
    assert bool(sums.clipped) is not moves


@settings(deadline=None)
@given(tokens)
def test_kl_estimate_is_never_negative_and_zero_on_policy(rows: list[tuple[float, float, float]]) -> None:
    new, old, advantage = columns(rows)
    assert grpo(new, old, advantage, clip_low=LOW, clip_high=HIGH).kl.item() >= -1e-6  # rounding
    same = grpo(new, new.detach(), advantage, clip_low=LOW, clip_high=HIGH)
    assert same.kl.item() == 0
    assert same.ratio.item() == len(rows)
    assert same.ratio_max.item() == 1


def test_kl_estimate_is_unbiased() -> None:
    old, new = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    of_each = torch.stack(
        [grpo(n.log(), o.log(), torch.ones(1), clip_low=LOW, clip_high=HIGH).kl for n, o in zip(new, old, strict=True)]
    )
    assert float((old * of_each).sum()) == pytest.approx(float((old * (old / new).log()).sum()), rel=1e-5)


@pytest.mark.parametrize("kind", ["grpo", "reinforce"])
def test_a_hopeless_ratio_stays_a_number(kind: str) -> None:
    new, old, advantage = columns([(0.0, -500.0, 0.0), (0.0, -500.0, -1.0), (-500.0, 0.0, 1.0)])
    sums = policy_loss(kind, new, old, advantage, clip_low=LOW, clip_high=HIGH)  # type: ignore[arg-type]
    assert all(math.isfinite(value.item()) for value in sums)
    assert all(math.isfinite(value) for value in gradient(sums.loss, new))
    assert sums.ratio_max.item() == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-5)


@pytest.mark.parametrize("kind", ["grpo", "reinforce"])
def test_no_token_gives_zero(kind: str) -> None:
    empty = torch.zeros(0, requires_grad=True)
    sums = policy_loss(kind, empty, torch.zeros(0), torch.zeros(0), clip_low=LOW, clip_high=HIGH)  # type: ignore[arg-type]
    assert [value.item() for value in sums] == [0.0] * 5
    assert gradient(sums.loss, empty) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_token_logprobs_are_those_of_the_tempered_distribution(temperature: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2500, 7, generator=generator)).to(dtype)
    targets = torch.randint(0, 7, (2500,), generator=generator)
    found, entropies = token_logprobs(logits, targets, temperature=temperature)
    reference = torch.log_softmax(logits.double() / temperature, -1)
    assert found.dtype == entropies.dtype == torch.float32
    np.testing.assert_allclose(found, reference.gather(-1, targets[:, None])[:, 0], atol=2e-6)
    np.testing.assert_allclose(entropies, -(reference.exp() * reference).sum(-1), atol=2e-6)


def test_token_logprobs_have_the_gradient_of_a_softmax() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3])
    found, _ = token_logprobs(logits, targets, temperature=2.0)
    expected = (torch.nn.functional.one_hot(targets, 5) - torch.softmax(logits / 2.0, -1)) / 2.0
    np.testing.assert_allclose(torch.autograd.grad(found.sum(), logits)[0], expected.detach(), atol=1e-6)
