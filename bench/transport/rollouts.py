"""What is carried: rollouts as the engine leaves them, in the two forms that the ways begin with, and their batches.

A rollout of T tokens has a context of 100 and S = T - 100 sampled ones, with a log-probability each: 8 bytes of content
a token, by which all ways are compared, however many bytes they send.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from consumers.trainer.packing import Document, build_micro_batches, pack

CONTEXT = 100
VOCABULARY = 150_000
BYTES_A_TOKEN = 8
GROUP = 8
"""Members of a group."""
ROW_TOKENS = 131_072
STEP_TOKENS = 524_288
DISTINCT = 8
"""Different contents that take turns; making a new one for each rollout would take longer than sending it."""


class Sampled(msgspec.Struct, frozen=True):
    """One rollout before anything is encoded. Ways that send lists begin with lists, as engines give them."""

    number: int
    """From 0; its group and its place in it follow."""
    tokens: npt.NDArray[np.int32]
    """int32 [T]."""
    logprobs: npt.NDArray[np.float32]
    """float32 [S]."""
    token_list: list[int]
    logprob_list: list[float]

    @property
    def group(self) -> int:
        return self.number // GROUP

    @property
    def member(self) -> int:
        return self.number % GROUP

    @property
    def reward(self) -> float:
        """Members differ, so that each group teaches something."""
        return float(self.number % 2)


class Rollouts:
    """Rollouts of one length, by their number."""

    def __init__(self, length: int) -> None:
        """``length``: T, in tokens."""
        random = np.random.default_rng(length)
        self._contents = []
        for _ in range(DISTINCT):
            tokens = random.integers(0, VOCABULARY, length, dtype=np.int32)
            logprobs = -random.exponential(size=length - CONTEXT).astype(np.float32)
            self._contents.append((tokens, logprobs, tokens.tolist(), logprobs.tolist()))

    def __getitem__(self, number: int) -> Sampled:
        return Sampled(number, *self._contents[number % DISTINCT])

    def of(self, numbers: range | list[int]) -> Iterator[Sampled]:
        return (self[number] for number in numbers)


def step_rollouts(length: int) -> int:
    """Rollouts in a batch of about STEP_TOKENS: whole groups."""
    return max(1, STEP_TOKENS // (length * GROUP)) * GROUP


def document(tokens: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32], advantage: float) -> Document:
    """As the trainer packs it. ``tokens``: [T]; ``logprobs``: [S]."""
    trained = [slice(CONTEXT, len(tokens))]
    return Document(tokens=tokens, trained=trained, exact=True, logprobs=logprobs, advantage=advantage)


def pack_documents(documents: list[Document]) -> int:
    """Pack a batch into the arrays that are trained, with the trainer's own code. Returns their tokens."""
    lengths = [len(each.tokens) for each in documents]
    packing = pack(lengths, row_tokens=ROW_TOKENS, micro_batch_tokens=ROW_TOKENS)
    return sum(batch.tokens_RL.size for batch in build_micro_batches(packing, documents))
