"""A step's arrays: each training sequence of a rollout is a document of its own."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from consumers.trainer.batch import documents, lengths, micro_batches
from consumers.trainer.groups import Member
from consumers.trainer.judgement import Rules
from consumers.trainer.packing import pack
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
    assert document.trained.tolist() == WHOLE.loss_mask().tolist()
    assert document.logprobs[document.trained].tolist() == WHOLE.logprob_values().tolist()


def test_the_sequences_of_a_rollout_divide_what_it_holds() -> None:
    (whole,) = documents(Member(32, WHOLE), 0.5, 6, RULES)
    first, second = documents(Member(31, PARTED), 0.5, 6, RULES)
    assert (len(first.tokens), len(second.tokens)) == (9, 5)
    for field in ("tokens", "trained", "logprobs"):
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
    assert (first.trained.sum(), second.trained.sum()) == (0, 2)


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
