"""A step's batch: from the groups that were chosen to the arrays that are trained.

Live training and training again use the same functions: the recorded decisions of a ``step`` event (groups,
advantages, packing) and the logged rollouts give the same arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from schemas import LogGap, Rollout, TrainedGroup

from .groups import Member
from .judgement import Rules, trained_tokens
from .micro_batch import MicroBatch
from .packing import Document, Packing, build_micro_batches


def trained_members(groups: Iterable[TrainedGroup]) -> Iterator[tuple[int, float]]:
    """Sequence in ROLLOUTS and advantage of each trained member, in the order that ``packing`` counts."""
    for group in groups:
        for sequence, advantage in zip(group.sequences, group.advantages, strict=True):
            if advantage is not None:
                yield sequence, advantage


def lengths(groups: Iterable[TrainedGroup], rollouts: Mapping[int, Rollout]) -> list[int]:
    """Tokens of each trained member, in packing order."""
    return [len(rollouts[sequence].tokens) // 4 for sequence, _ in trained_members(groups)]


def micro_batches(
    step: int, groups: Sequence[TrainedGroup], packing: Packing, rollouts: Mapping[int, Rollout], rules: Rules
) -> list[MicroBatch]:
    """The arrays of step ``step``.

    ``rollouts``: by sequence in ROLLOUTS. Raises LogGap when one that the step needs is not there.
    """
    documents = []
    for sequence, advantage in trained_members(groups):
        if sequence not in rollouts:
            raise LogGap(
                f"step {step} trains the rollout at sequence {sequence} of ROLLOUTS, which is not there: "
                "restore the stream from a backup, or begin at a later checkpoint"
            )
        documents.append(document(Member(sequence, rollouts[sequence]), advantage, step, rules))
    return build_micro_batches(packing, documents)


def document(member: Member, advantage: float, step: int, rules: Rules) -> Document:
    """One rollout as ``step`` trains it."""
    rollout = member.rollout
    sampled_T = rollout.loss_mask()
    logprobs_T = np.zeros(len(sampled_T), dtype=np.float32)
    logprobs_T[sampled_T] = rollout.logprob_values()
    exact_T = np.zeros_like(sampled_T)
    if rollout.swaps_during == 0 and rollout.greatest_version == step - 1:
        exact_T = sampled_T
    return Document(
        tokens=rollout.token_ids(),
        trained=trained_tokens(member, step, rules),
        exact=exact_T,
        logprobs=logprobs_T,
        advantage=advantage,
    )
