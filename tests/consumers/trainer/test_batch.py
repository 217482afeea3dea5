"""A step's arrays: each training sequence of a rollout is a document of its own."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

import msgspec
import numpy as np
import pytest

from consumers.trainer.batch import documents, lengths, micro_batches
from consumers.trainer.groups import Member
from consumers.trainer.judgement import Rules, kept_sequences, trained_tokens
from consumers.trainer.packing import pack, runs_of
from schemas import LogGap, Rollout, Span
from tests.examples import rollout, trained_group

RULES = Rules(max_off_policy_steps=2, stale="mask", advantage="mean", row_tokens=32)
WHOLE = rollout()
PARTED = rollout(starts=[1])
"""Of 9 and 5 tokens; the swap from version 4 to 5 is in the first."""
GROUP = trained_group(sequences=[31, 32, 40], advantages=[0.5, -0.5, None])
ROLLOUTS: dict[int, Rollout] = {31: PARTED, 32: WHOLE}


def test_a_rollout_of_one_sequence_is_one_document() -> None:
    (document,) = documents(Member(32, WHOLE), 0.5, 6, RULES)
    assert document.tokens.tolist() == WHOLE.token_ids().tolist()
    assert document.trained == WHOLE.replies()
    assert document.logprobs.tolist() == WHOLE.logprob_values().tolist()


def test_the_sequences_of_a_rollout_divide_what_it_holds() -> None:
    (whole,) = documents(Member(32, WHOLE), 0.5, 6, RULES)
    first, second = documents(Member(31, PARTED), 0.5, 6, RULES)
    assert (len(first.tokens), len(second.tokens)) == (9, 5)
    assert [*first.trained, *(slice(9 + run.start, 9 + run.stop) for run in second.trained)] == whole.trained
    for field in ("tokens", "logprobs"):
        joined = np.concatenate([getattr(first, field), getattr(second, field)])
        assert joined.tolist() == getattr(whole, field).tolist()
    assert first.exact == second.exact == whole.exact
    assert first.advantage == second.advantage == 0.5


@pytest.mark.parametrize(
    ("version", "swaps_during", "exact"), [(5, 0, True), (4, 0, False), (5, 1, False)], ids=["new", "old", "crossed"]
)
def test_a_rollout_is_exact_where_no_others_than_the_weights_of_the_step_sampled_it(
    version: int, swaps_during: int, exact: bool
) -> None:
    rollout = msgspec.structs.replace(WHOLE, spans=[Span(version, 0, 6)], swaps_during=swaps_during)
    (document,) = documents(Member(32, rollout), 0.5, 6, RULES)
    assert document.exact is exact


def test_tokens_are_masked_by_age_in_each_sequence() -> None:
    old = msgspec.structs.replace(PARTED, spans=[Span(1, 0, 4), Span(5, 4, 6)])
    first, second = documents(Member(31, old), 0.5, 6, RULES)
    assert (first.trained, second.trained) == ([], [slice(3, 5)])
    assert (first.logprobs.tolist(), second.logprobs.tolist()) == ([], old.logprob_values()[4:].tolist())


@pytest.mark.parametrize("too_long", ["drop", "cut"])
@pytest.mark.parametrize("spans", [[(5, 6)], [(1, 1), (5, 5)], [(1, 3), (4, 2), (5, 1)]])
@pytest.mark.parametrize("starts", [[], [1]])
def test_documents_train_what_the_mask_of_the_rollout_says(
    starts: list[int], spans: list[tuple[int, int]], too_long: Literal["drop", "cut"]
) -> None:
    ends = list(accumulate(count for _, count in spans))
    own = [Span(version, end - count, end) for (version, count), end in zip(spans, ends, strict=True)]
    member = Member(1, msgspec.structs.replace(WHOLE, starts=starts, spans=own))
    rules = msgspec.structs.replace(RULES, too_long=too_long, row_tokens=8)
    mask = trained_tokens(member, 6, rules)
    logprobs = np.zeros(len(mask), np.float32)
    logprobs[WHOLE.loss_mask()] = WHOLE.logprob_values()
    made = documents(member, 0.5, 6, rules)
    for part, document in zip(kept_sequences(member.rollout, rules), made, strict=True):
        own_mask = mask[part.start : part.stop]
        assert document.trained == runs_of(own_mask)
        assert document.logprobs.tolist() == logprobs[part.start : part.stop][own_mask].tolist()


def test_packing_counts_documents() -> None:
    assert lengths([GROUP], ROLLOUTS, RULES) == [9, 5, 14]
    packing = pack(lengths([GROUP], ROLLOUTS, RULES), row_tokens=16, micro_batch_tokens=32)
    (batch,) = micro_batches(6, [GROUP], packing, ROLLOUTS, RULES)
    assert batch.trained_RL.sum() == 12
    rows = {tuple(row) for row in batch.positions_RL[:, :14].tolist()}
    assert (*range(9), *range(5)) in rows


def test_sequences_that_were_not_packed_are_a_gap_in_the_log() -> None:
    with pytest.raises(LogGap, match=r"step 6 packed 2 training sequences and its rollouts have 3: restore"):
        micro_batches(6, [GROUP], [[[0], [1]]], ROLLOUTS, RULES)
    with pytest.raises(LogGap, match="sequence 31 of ROLLOUTS, which is not there"):
        micro_batches(6, [GROUP], [[[0], [1]]], {32: WHOLE}, RULES)
