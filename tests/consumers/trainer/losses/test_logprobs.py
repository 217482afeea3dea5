"""Log-probabilities and entropies are those of the tempered distribution, and the gap counts exact tokens alone."""

import numpy as np
import pytest
import torch

from consumers.trainer.losses.logprobs import logprob_gap, token_logprobs


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


def test_the_gap_counts_exact_tokens_alone() -> None:
    own, theirs = torch.tensor([-1.0, -2.0, -3.0, -4.0]), torch.tensor([-1.5, -2.0, -2.75, -9.0])
    gap = logprob_gap(own, theirs, torch.tensor([True, True, True, False]))
    assert [value.item() for value in gap] == [0.75, 3, 0.5]
    none = logprob_gap(own, theirs, torch.zeros(4, dtype=torch.bool))
    assert [value.item() for value in none] == [0, 0, 0]
