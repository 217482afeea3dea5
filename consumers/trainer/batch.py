"""A step's batch: from the groups that were chosen to the arrays that are trained.

A member's rollout is one document, or one for each of its training sequences (``Rollout.starts``): none of them sees
the tokens of another, as in the requests that sampled them. Positions of ``packing`` count documents.

Live training and training again use the same functions: the recorded decisions of a ``step`` event (groups,
advantages, packing) and the logged rollouts give the same arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from schemas import LogGap, Rollout, TrainedGroup

from .groups import Member
from .judgement import Rules, kept_sequences, trained_runs, trained_tokens
from .micro_batch import MicroBatch
from .packing import Document, Packing, build_micro_batches, tokens_in


def trained_members(groups: Iterable[TrainedGroup]) -> Iterator[tuple[int, float]]:
    """Sequence in ROLLOUTS and advantage of each trained member, in the order that ``packing`` counts."""
    for group in groups:
        for sequence, advantage in zip(group.sequences, group.advantages, strict=True):
            if advantage is not None:
                yield sequence, advantage


def lengths(groups: Iterable[TrainedGroup], rollouts: Mapping[int, Rollout], rules: Rules) -> list[int]:
    """Tokens of each document, in packing order: a trained member has one for each of its training sequences."""
    members = trained_members(groups)
    return [len(part) for sequence, _ in members for part in kept_sequences(rollouts[sequence], rules)]


def micro_batches(
    step: int, groups: Sequence[TrainedGroup], packing: Packing, rollouts: Mapping[int, Rollout], rules: Rules
) -> list[MicroBatch]:
    """The arrays of step ``step``.

    ``rollouts``: by sequence in ROLLOUTS. Raises LogGap when one that the step needs is not there, or is another one.
    """
    packed: list[Document] = []
    for sequence, advantage in trained_members(groups):
        if sequence not in rollouts:
            raise LogGap(
                f"step {step} trains the rollout at sequence {sequence} of ROLLOUTS, which is not there: "
                "restore the stream from a backup, or begin at a later checkpoint"
            )
        packed += documents(Member(sequence, rollouts[sequence]), advantage, step, rules)
    positions = sum(len(row) for rows in packing for row in rows)
    if positions != len(packed):
        raise LogGap(
            f"step {step} packed {positions} training sequences and its rollouts have {len(packed)}: "
            "restore ROLLOUTS and LEDGER from one backup, or begin at a later checkpoint"
        )
    return build_micro_batches(packing, packed)


def documents(member: Member, advantage: float, step: int, rules: Rules) -> list[Document]:
    """One rollout as ``step`` trains it: a document for each training sequence, all with its advantage.

    Raises FutureVersion for a rollout that claims weights which do not exist.
    """
    rollout = member.rollout
    runs = deque(trained_runs(member, step, rules))
    logprobs_N = rollout.logprob_values()
    if tokens_in(runs) < len(logprobs_N):
        logprobs_N = logprobs_N[trained_tokens(member, step, rules)[rollout.loss_mask()]]
    exact = rollout.swaps_during == 0 and rollout.greatest_version == step - 1
    made, taken = [], 0
    for part in kept_sequences(rollout, rules):
        trained = []
        while runs and runs[0].start < part.stop:
            run = runs.popleft()
            trained.append(slice(run.start - part.start, run.stop - part.start))
        before, taken = taken, taken + tokens_in(trained)
        made.append(
            Document(
                tokens=rollout.token_ids()[part.start : part.stop],
                trained=trained,
                exact=exact,
                logprobs=logprobs_N[before:taken],
                advantage=advantage,
            )
        )
    return made
