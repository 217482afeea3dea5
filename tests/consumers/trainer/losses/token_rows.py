"""Tokens written as rows, for tests of losses, and the gradient of what a loss says of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from consumers.trainer.losses import TokenLoss, Tokens

logprobs = st.floats(-9, 0, width=32)
rows = st.lists(st.tuples(logprobs, logprobs, st.floats(-3, 3, width=32)), min_size=1, max_size=20)
"""Of log-probability, old log-probability and advantage."""


def tokens_of(rows: Sequence[tuple[float, float, float]], documents: Sequence[int] | None = None) -> Tokens:
    """documents: which one each row belongs to, 0, 1, ...; all to one unless given."""
    new, old, advantage = (torch.tensor(column, dtype=torch.float32) for column in zip(*rows, strict=True))
    numbers = torch.tensor([0] * len(rows) if documents is None else documents)
    return Tokens(new.requires_grad_(), old, old, advantage, numbers, torch.bincount(numbers))


def no_tokens() -> Tokens:
    """What a rank without work has."""
    none, numbers = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    return Tokens(torch.zeros(0, requires_grad=True), none, none, none, numbers, numbers)


def gradient(loss: torch.Tensor, tokens: Tokens) -> list[float]:
    return torch.autograd.grad(loss, tokens.logprobs_N, retain_graph=True)[0].tolist()  # type: ignore[no-any-return]


def values_and_gradient(found: TokenLoss, tokens: Tokens) -> tuple[list[float], list[float]]:
    """The loss of each token, and the gradient of their sum by each log-probability."""
    return found.loss_N.tolist(), gradient(found.loss_N.sum(), tokens)
