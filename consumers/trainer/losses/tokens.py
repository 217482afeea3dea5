"""What a loss is given, and what it answers.

Shape legend: N trained tokens of a micro-batch, D documents that they belong to.
"""

# ruff: noqa: N815  # shapes are in names

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Tokens(NamedTuple):
    """The trained tokens of one micro-batch. A document is never split over two of them.

    The ratio of a loss is ``logprobs_N`` to ``old_N``. ``behaviour_N`` is the same as ``old_N`` unless truncated
    importance sampling is on: then the old policy is the trainer's own, see ``objective``.
    """

    logprobs_N: torch.Tensor
    """float32 with gradient: log-probability of each token under the policy that is trained."""
    old_N: torch.Tensor
    """float32: under the policy that the ratio is taken to."""
    behaviour_N: torch.Tensor
    """float32: under the policy that sampled the token, as the generator said."""
    advantages_N: torch.Tensor
    """float32."""
    documents_N: torch.Tensor
    """int64: which document of the micro-batch, from 0 to D - 1."""
    lengths_D: torch.Tensor
    """int64: trained tokens of each document, at least 1."""


class TokenLoss(NamedTuple):
    """What a loss says of each token. How tokens are added up is not its matter."""

    loss_N: torch.Tensor
    """float32 with gradient: the negated objective."""
    bounded_N: torch.Tensor
    """bool: where the loss held the token back (clipped, truncated or masked it)."""


Loss = Callable[[Tokens], TokenLoss]
"""A loss with its settings filled in."""
