"""Packing keeps every document once, within its bounds, and its arrays say what the documents say."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.trainer.packing import (
    PAD_MULTIPLE,
    Document,
    build_micro_batches,
    pack,
    packing_metrics,
    padded,
    runs_of,
)
from tests.consumers.trainer.tiny_models import random_documents

row_lengths = st.integers(1, 80)


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Lengths, row tokens, micro-batch tokens."""
    row_tokens = draw(row_lengths)
    lengths = draw(st.lists(st.integers(1, row_tokens), max_size=60))
    return lengths, row_tokens, draw(st.integers(row_tokens, 10 * row_tokens))


@settings(deadline=None)
@given(packings())
def test_every_document_is_packed_exactly_once(case: tuple[list[int], int, int]) -> None:
    lengths, row_tokens, micro_batch_tokens = case
    packing = pack(lengths, row_tokens=row_tokens, micro_batch_tokens=micro_batch_tokens)
    assert sorted(p for rows in packing for row in rows for p in row) == list(range(len(lengths)))
    assert all(row for rows in packing for row in rows)
    assert all(packing)


@settings(deadline=None)
@given(packings())
def test_rows_and_micro_batches_stay_within_their_budgets(case: tuple[list[int], int, int]) -> None:
    lengths, row_tokens, micro_batch_tokens = case
    for rows in pack(lengths, row_tokens=row_tokens, micro_batch_tokens=micro_batch_tokens):
        used = [sum(lengths[p] for p in row) for row in rows]
        assert max(used) <= row_tokens
        assert len(rows) == 1 or len(rows) * padded(max(used)) <= micro_batch_tokens


@settings(deadline=None)
@given(packings())
def test_packing_is_at_most_twice_what_it_holds(case: tuple[list[int], int, int]) -> None:
    lengths, row_tokens, micro_batch_tokens = case
    rows = [row for rows in pack(lengths, row_tokens=row_tokens, micro_batch_tokens=micro_batch_tokens) for row in rows]
    # No two rows fit into one, or best fit would have put their documents together.
    used = sorted(sum(lengths[p] for p in row) for row in rows)
    assert len(used) < 2 or used[0] + used[1] > row_tokens


@settings(deadline=None)
@given(packings())
def test_the_same_lengths_give_the_same_packing(case: tuple[list[int], int, int]) -> None:
    lengths, row_tokens, micro_batch_tokens = case
    first = pack(lengths, row_tokens=row_tokens, micro_batch_tokens=micro_batch_tokens)
    assert first == pack(list(lengths), row_tokens=row_tokens, micro_batch_tokens=micro_batch_tokens)


def test_padding_is_a_share_of_all_columns() -> None:
    # Rows of 9 and 3 tokens in a micro-batch of 2 x 16 columns, and one of 8 in 1 x 8: 20 of 40 columns hold tokens.
    packing = [[[0, 1], [2]], [[3]]]
    assert packing_metrics(packing, [5, 4, 3, 8]) == {"documents": 4.0, "padding_share": 0.5}


@settings(deadline=None)
@given(packings().filter(lambda case: bool(case[0])))
def test_padding_is_what_the_arrays_have_beyond_the_documents(case: tuple[list[int], int, int]) -> None:
    lengths, row_tokens, micro_batch_tokens = case
    packing = pack(lengths, row_tokens=row_tokens, micro_batch_tokens=micro_batch_tokens)
    documents = [
        Document(
            tokens=np.zeros(length, np.int32),
            trained=[],
            exact=False,
            logprobs=np.zeros(0, np.float32),
            advantage=0.0,
        )
        for length in lengths
    ]
    columns = sum(batch.tokens_RL.size for batch in build_micro_batches(packing, documents))
    assert packing_metrics(packing, lengths)["padding_share"] == pytest.approx((columns - sum(lengths)) / columns)


def test_documents_are_counted_within_their_micro_batch() -> None:
    documents = random_documents(6)
    (batch,) = build_micro_batches([[[0, 1, 2], [3, 4], [5]]], documents)
    numbers = batch.documents_RL
    assert batch.trained_documents == 6
    for r, row in enumerate(([0, 1, 2], [3, 4], [5])):
        ends = np.cumsum([len(documents[p].tokens) for p in row])
        of_row = [len(set(numbers[r, start:end])) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        assert of_row == [1] * len(row)
        assert len(set(numbers[r, : ends[-1]])) == len(row)
    assert not set(numbers[0]) & set(numbers[1])


@pytest.mark.parametrize("length", [0, 9])
def test_a_length_that_no_row_takes_is_our_own_mistake(length: int) -> None:
    with pytest.raises(ValueError, match=f"document 1 has {length} tokens"):
        pack([3, length], row_tokens=8, micro_batch_tokens=8)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**31))
def test_micro_batches_hold_what_the_documents_hold(count: int, seed: int) -> None:
    documents = random_documents(count, seed=seed)
    packing = pack([len(d.tokens) for d in documents], row_tokens=40, micro_batch_tokens=120)
    batches = build_micro_batches(packing, documents)
    assert len(batches) == len(packing)
    for rows, batch in zip(packing, batches, strict=True):
        assert batch.tokens_RL.shape[0] == len(rows)
        assert batch.tokens_RL.shape[1] % PAD_MULTIPLE == 0
        for r, row in enumerate(rows):
            start = 0
            for document in (documents[p] for p in row):
                span = slice(start, start + len(document.tokens))
                trained, logprobs = np.zeros(len(document.tokens), np.bool_), np.zeros(len(document.tokens), np.float32)
                for run in document.trained:
                    trained[run] = True
                logprobs[trained] = document.logprobs
                assert np.array_equal(batch.tokens_RL[r, span], document.tokens)
                assert np.array_equal(batch.positions_RL[r, span], np.arange(len(document.tokens)))
                assert np.array_equal(batch.trained_RL[r, span], trained)
                assert np.array_equal(batch.logprobs_RL[r, span], logprobs)
                expected = np.where(trained, np.float32(document.advantage), np.float32(0))
                assert np.array_equal(batch.advantages_RL[r, span], expected)
                assert np.array_equal(batch.exact_RL[r, span], document.exact & trained)
                start = span.stop
            for empty in (batch.tokens_RL, batch.trained_RL, batch.exact_RL, batch.advantages_RL, batch.logprobs_RL):
                assert not empty[r, start:].any()
            assert np.array_equal(batch.positions_RL[r, start:], np.arange(batch.tokens_RL.shape[1] - start))


def test_a_document_that_trains_its_first_token_is_refused() -> None:
    document = Document(
        tokens=np.zeros(2, np.int32),
        trained=[slice(0, 2)],
        exact=True,
        logprobs=np.zeros(2, np.float32),
        advantage=1.0,
    )
    with pytest.raises(ValueError, match="document 0 trains its first token"):
        build_micro_batches([[[0]]], [document])


@pytest.mark.parametrize(("trained", "logprobs"), [([slice(1, 3)], 1), ([slice(1, 2), slice(2, 4)], 3), ([], 1)])
def test_a_document_whose_fields_disagree_is_refused(trained: list[slice], logprobs: int) -> None:
    document = Document(
        tokens=np.zeros(3, np.int32),
        trained=trained,
        exact=False,
        logprobs=np.zeros(logprobs, np.float32),
        advantage=1.0,
    )
    with pytest.raises(ValueError, match=f"3 tokens, trains . in .*, and has {logprobs} log-probabilities"):
        build_micro_batches([[[0]]], [document])


@given(st.lists(st.booleans(), max_size=12).map(lambda each: np.array(each, np.bool_)))
def test_runs_are_what_a_mask_holds_and_do_not_touch(mask: np.ndarray) -> None:
    runs = runs_of(mask)
    again = np.zeros_like(mask)
    for run in runs:
        assert run.start < run.stop
        again[run] = True
    assert again.tolist() == mask.tolist()
    assert all(before.stop < after.start for before, after in pairwise(runs))
