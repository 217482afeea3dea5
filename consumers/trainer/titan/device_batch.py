"""A micro-batch on the device that trains: its rows, and what belongs to each trained token.

Shape legend: R rows, L columns, N trained tokens, D documents with a trained token.
"""

# ruff: noqa: N815  # shapes are in names

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from consumers.trainer.micro_batch import MicroBatch


class DeviceBatch(NamedTuple):
    """Tensors on one device."""

    tokens_RL: torch.Tensor
    positions_RL: torch.Tensor
    sources_N: torch.Tensor
    """int64: flat index of the token before each trained one: its logits predict it."""
    targets_N: torch.Tensor
    """int64: the trained tokens."""
    exact_N: torch.Tensor
    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor
    documents_N: torch.Tensor
    """int64: which of the D documents, in their order."""
    lengths_D: torch.Tensor
    """int64: trained tokens of each document."""


def to_device(micro_batch: MicroBatch, device: torch.device) -> DeviceBatch:
    """Raises ValueError where the first token of a document is trained, which nothing predicts."""
    if bool((micro_batch.trained_RL & (micro_batch.positions_RL == 0)).any()):
        raise ValueError("the first token of a document is trained, which nothing predicts")
    trained = micro_batch.trained_RL
    _, documents_N, lengths_D = np.unique(micro_batch.documents_RL[trained], return_inverse=True, return_counts=True)
    return DeviceBatch(
        tokens_RL=torch.from_numpy(micro_batch.tokens_RL.astype(np.int64)).to(device),
        positions_RL=torch.from_numpy(micro_batch.positions_RL.astype(np.int64)).to(device),
        sources_N=torch.from_numpy(np.flatnonzero(trained) - 1).to(device),
        targets_N=torch.from_numpy(micro_batch.tokens_RL[trained].astype(np.int64)).to(device),
        exact_N=torch.from_numpy(micro_batch.exact_RL[trained]).to(device),
        behaviour_N=torch.from_numpy(micro_batch.logprobs_RL[trained]).to(device),
        advantages_N=torch.from_numpy(micro_batch.advantages_RL[trained]).to(device),
        documents_N=torch.from_numpy(documents_N).to(device),
        lengths_D=torch.from_numpy(lengths_D).to(device),
    )
