"""What one forward and backward pass trains: rows of packed documents as padded arrays.

Shape legend: R rows, L columns (the longest row, padded).
"""

# ruff: noqa: N802, N815  # shapes are in names

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of documents, one after the other; the token at column t is predicted from columns < t of its own document.

    The padding after a row's last document is a document of its own of which nothing is trained.
    """

    tokens_RL: npt.NDArray[np.int32]
    """int32 [R, L]: token ids; 0 in the padding."""
    positions_RL: npt.NDArray[np.int32]
    """int32 [R, L]: position within the document; 0 at each document's start, and nowhere else."""
    trained_RL: npt.NDArray[np.bool_]
    """bool [R, L]: True where predicting this token is trained; never at position 0, where nothing predicts it."""
    advantages_RL: npt.NDArray[np.float32]
    """float32 [R, L]: advantage of the token's document; 0 where not trained."""
    exact_RL: npt.NDArray[np.bool_]
    """bool [R, L]: True for trained tokens that the very weights which are updated sampled, in a rollout that no swap
    crossed: there the log-probabilities of trainer and generator must agree."""
    logprobs_RL: npt.NDArray[np.float32]
    """float32 [R, L]: log-probability under the policy that sampled the token; 0 where not trained."""

    @property
    def trained_tokens(self) -> int:
        """Number of tokens that are trained."""
        return int(self.trained_RL.sum())

    @property
    def documents_RL(self) -> npt.NDArray[np.int64]:
        """int64 [R, L]: number of each token's document, row after row from 0; padding counts as one too."""
        return (np.cumsum(self.positions_RL.reshape(-1) == 0) - 1).reshape(self.positions_RL.shape)

    @property
    def trained_documents(self) -> int:
        """Number of documents of which a token is trained."""
        return len(np.unique(self.documents_RL[self.trained_RL]))


def empty_micro_batch() -> MicroBatch:
    """One row of padding: what a rank without work passes through the model, so that collectives still match."""
    shape = (1, 8)
    return MicroBatch(
        tokens_RL=np.zeros(shape, np.int32),
        positions_RL=np.arange(8, dtype=np.int32).reshape(shape),
        trained_RL=np.zeros(shape, np.bool_),
        exact_RL=np.zeros(shape, np.bool_),
        advantages_RL=np.zeros(shape, np.float32),
        logprobs_RL=np.zeros(shape, np.float32),
    )
