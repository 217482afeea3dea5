from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas import Event, EventInvalid, Rollout, Span, Task, Timings, Turn, decode, validate
from tests import examples
from tests.schemas.strategies import rollouts

wrong_by = st.integers(-5, 5).filter(bool)


def refused(event: Event) -> None:
    """A reader of this event's payload refuses it, whoever wrote it."""
    with pytest.raises(EventInvalid):
        decode(msgspec.msgpack.encode(event))


def resized(packed: bytes, by: int) -> bytes:
    return packed + bytes(by) if by > 0 else packed[: max(0, len(packed) + by)]


@given(rollouts())
def test_any_consistent_rollout_is_valid(rollout: Rollout) -> None:
    validate(rollout)
    assert len(rollout.loss_mask()) == len(rollout.token_ids())
    assert rollout.loss_mask().sum() == len(rollout.logprob_values()) == rollout.sampled_tokens
    assert len(rollout.token_versions()) == rollout.sampled_tokens
    assert (np.diff(rollout.token_versions()) >= 0).all()


@given(rollouts())
def test_sequences_divide_the_tokens_at_the_turns_that_start_one(rollout: Rollout) -> None:
    sequences = rollout.sequences()
    assert [i for part in sequences for i in part] == list(range(len(rollout.tokens) // 4))
    before = [sum(turn.context + turn.sampled for turn in rollout.turns[:start]) for start in rollout.starts]
    assert [part.start for part in sequences] == [0, *before]


@given(rollouts().filter(lambda rollout: len(rollout.turns) > 1), st.data())
def test_starts_that_are_no_turns_in_order_are_refused(rollout: Rollout, data: st.DataObject) -> None:
    odd = data.draw(st.sampled_from([[0], [len(rollout.turns)], [1, 1], [1, 0]]))
    refused(msgspec.structs.replace(rollout, starts=odd))


@given(rollouts(), st.sampled_from(["tokens", "logprobs"]), st.integers(-40, 40).filter(bool))
def test_any_other_number_of_bytes_is_refused(rollout: Rollout, field: str, by: int) -> None:
    packed = getattr(rollout, field)
    changed = resized(packed, by)
    assume(len(changed) != len(packed))
    refused(msgspec.structs.replace(rollout, **{field: changed}))


@given(st.data(), rollouts().filter(lambda rollout: bool(rollout.turns)), wrong_by)
def test_any_other_length_of_a_turn_is_refused(data: st.DataObject, rollout: Rollout, by: int) -> None:
    turns = list(rollout.turns)
    i = data.draw(st.integers(0, len(turns) - 1))
    field = data.draw(st.sampled_from(["context", "sampled"]))
    turns[i] = msgspec.structs.replace(turns[i], **{field: getattr(turns[i], field) + by})
    refused(msgspec.structs.replace(rollout, turns=turns))


@given(rollouts().filter(lambda rollout: any(turn.context for turn in rollout.turns)))
def test_context_that_passes_as_sampled_is_refused(rollout: Rollout) -> None:
    i = next(i for i, turn in enumerate(rollout.turns) if turn.context)
    turn = rollout.turns[i]
    moved = msgspec.structs.replace(turn, context=turn.context - 1, sampled=turn.sampled + 1)
    refused(msgspec.structs.replace(rollout, turns=[*rollout.turns[:i], moved, *rollout.turns[i + 1 :]]))


@given(st.data(), rollouts().filter(lambda rollout: bool(rollout.spans)), wrong_by)
def test_any_other_bound_of_a_span_is_refused(data: st.DataObject, rollout: Rollout, by: int) -> None:
    spans = list(rollout.spans)
    i = data.draw(st.integers(0, len(spans) - 1))
    field = data.draw(st.sampled_from(["start", "end"]))
    spans[i] = msgspec.structs.replace(spans[i], **{field: getattr(spans[i], field) + by})
    refused(msgspec.structs.replace(rollout, spans=spans))


@given(st.data(), rollouts().filter(lambda rollout: bool(rollout.spans)))
def test_a_lost_or_doubled_span_is_refused(data: st.DataObject, rollout: Rollout) -> None:
    i = data.draw(st.integers(0, len(rollout.spans) - 1))
    refused(msgspec.structs.replace(rollout, spans=rollout.spans[:i] + rollout.spans[i + 1 :]))
    refused(msgspec.structs.replace(rollout, spans=[*rollout.spans[: i + 1], *rollout.spans[i:]]))


@given(rollouts().filter(lambda rollout: rollout.sampled_tokens > 0), st.data())
def test_a_logprob_that_is_no_number_is_refused(rollout: Rollout, data: st.DataObject) -> None:
    logprobs = rollout.logprob_values().copy()
    bad = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 1.0]))
    logprobs[data.draw(st.integers(0, len(logprobs) - 1))] = bad
    refused(msgspec.structs.replace(rollout, logprobs=logprobs.tobytes()))


def test_rounding_above_zero_is_a_logprob_still() -> None:
    logprobs = examples.packed_logprobs([1e-7, 0.0, -1.0, -1.0, -1.0, -1.0])
    validate(examples.rollout(logprobs=logprobs))


def test_loss_mask_marks_replies_and_versions_follow_spans() -> None:
    rollout = examples.rollout()
    assert rollout.loss_mask().tolist() == [False] * 5 + [True] * 4 + [False] * 3 + [True] * 2
    assert rollout.token_versions().tolist() == [4, 4, 5, 5, 5, 5]
    assert (rollout.least_version, rollout.greatest_version) == (4, 5)


def test_rollout_without_a_sampled_token_has_no_version() -> None:
    rollout = examples.failed_rollout()
    assert (rollout.least_version, rollout.greatest_version, rollout.sampled_tokens) == (None, None, 0)
    assert rollout.loss_mask().tolist() == rollout.token_versions().tolist() == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens": b"\0" * 4 * 1_000_001, "turns": [Turn(1_000_001, 0, 0, "stop")]}, "1000001 tokens exceed 1000000"),
        ({"turns": [Turn(0, 0, 0, "stop")] * 100_001}, "100001 turns exceed 100000"),
        ({"member": 4096}, "member 4096 is not below 4096"),
        ({"spans": [Span(2**31, 0, 6)]}, "version 2147483648 exceeds 2147483647"),
        ({"group": 2**53 + 1}, "group 9007199254740993 exceeds 9007199254740992"),
        ({"index": 2**64 - 1}, "index 18446744073709551615 exceeds"),
        ({"attempt": 2**31}, "attempt 2147483648 exceeds 2147483647"),
        ({"swaps_during": 2**31}, "swaps_during 2147483648 exceeds"),
        ({"turns": [Turn(8, 6, 2**31, "stop")]}, "cached 2147483648 exceeds"),
        ({"reward": -1e7}, r"reward -10000000\.0 is beyond 1e\+06"),
        ({"metrics": {"win": 1e308}}, r"metric 'win' is 1e\+308, beyond 1e\+12"),
        ({"metrics": {f"m{i}": 0.0 for i in range(257)}}, "257 metrics exceed 256"),
        ({"metrics": {"m" * 129: 0.0}}, "a name of 129 characters, more than 128"),
        ({"logprobs": examples.packed_logprobs([-1e38] * 6)}, "a logprob is below -10000"),
        ({"timings": Timings(started_at=1e300, total_s=1.0, sampling_s=1.0)}, "is no time of day"),
        ({"timings": Timings(started_at=1.0, total_s=-1e300, sampling_s=1.0)}, "is no duration"),
    ],
)
def test_sizes_are_bounded(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventInvalid, match=reason):
        validate(examples.rollout(**fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"group": 2**53 + 1}, "group"), ({"index": 2**60}, "index"), ({"least_version": 2**31}, "least_version")],
)
def test_numbers_of_a_task_are_bounded(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventInvalid, match=rf"{reason} \d+ exceeds"):
        validate(examples.task(**fields))


def test_figure_of_a_step_that_is_no_number_is_named() -> None:
    with pytest.raises(EventInvalid, match="number nan is not finite: 'grad_norm' of metrics"):
        validate(examples.step(metrics={"loss": 0.5, "grad_norm": float("nan")}))


@pytest.mark.parametrize("data", [{"a": float("nan")}, {"a": [float("inf")]}, {"a": b"bytes"}, {"a": {1: "number"}}])
def test_task_data_are_json_values_only(data: dict[str, Any]) -> None:
    """JSON would write a NaN as null, and the task would not be the one that was made."""
    with pytest.raises(EventInvalid, match=r"JSON value|finite|not text"):
        validate(examples.task(task=Task(prompt="", data=data)))


@pytest.mark.parametrize(
    "event",
    [
        examples.step(metrics={"loss": float("nan")}),
        examples.step(env_metrics={"reverse": {"exact": float("inf")}}),
        examples.step(groups=[examples.trained_group(advantages=[float("nan"), 0.0, None])]),
        examples.closed(rewards=[float("nan")]),
        examples.closed(metrics={"exact": float("nan")}),
        examples.metric(gauges={"running": float("nan")}),
        examples.lifecycle(details={"pause_s": float("inf")}),
    ],
    ids=lambda event: type(event).__name__,
)
def test_number_that_is_not_finite_is_refused_everywhere(event: Event) -> None:
    with pytest.raises(EventInvalid, match="is not finite"):
        validate(event)
