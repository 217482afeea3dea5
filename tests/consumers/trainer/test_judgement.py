from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.trainer.groups import Group, Member
from consumers.trainer.judgement import Rules, Verdict, judge, kept_sequences, kept_tokens, trained_tokens
from consumers.trainer.staleness import FutureVersion
from schemas import Failure, Rollout, Span, Turn
from tests.examples import failed_rollout, rollout

RULES = Rules(max_off_policy_steps=2, stale="drop", advantage="mean", row_tokens=32)


def group_of(*rollouts: Rollout) -> Group:
    return Group(7, len(rollouts), {i: Member(10 + i, each) for i, each in enumerate(rollouts)})


def fresh(reward: float, *versions: tuple[int, int]) -> Rollout:
    """A rollout of 6 sampled tokens; ``versions`` are (version, tokens)."""
    spans, start = [], 0
    for version, tokens in versions or ((5, 6),):
        spans.append(Span(version, start, start + tokens))
        start += tokens
    return rollout(group=7, reward=reward, spans=spans)


def test_a_group_with_signal_is_trained() -> None:
    verdict = judge(group_of(fresh(1.0), fresh(0.0)), 6, RULES)
    assert verdict.close is None
    assert verdict.trained.advantages == [0.5, -0.5]
    assert verdict.trained.sequences == [10, 11]


def test_a_group_that_agrees_teaches_nothing() -> None:
    assert judge(group_of(fresh(0.5), fresh(0.5)), 6, RULES).close == "no_signal"


def test_a_failed_member_is_left_out_and_is_no_zero_reward() -> None:
    verdict = judge(group_of(fresh(1.0), failed_rollout(group=7), fresh(0.0)), 6, RULES)
    assert verdict.trained.rewards == [1.0, None, 0.0]
    assert verdict.trained.advantages == [0.5, None, -0.5]
    assert verdict.trained.left_out == {"1": "error"}


def test_fewer_than_two_usable_members_close_the_group() -> None:
    assert judge(group_of(fresh(1.0), failed_rollout(group=7)), 6, RULES).close == "error"


def test_a_stale_member_counts_in_the_baseline_but_is_not_trained() -> None:
    verdict = judge(group_of(fresh(1.0), fresh(0.0), fresh(0.0, (2, 1), (5, 5))), 6, RULES)
    assert verdict.trained.left_out == {"2": "stale"}
    assert verdict.trained.advantages[0] == pytest.approx(2 / 3)
    assert verdict.trained.advantages[2] is None


def test_mask_keeps_the_fresh_tokens_of_a_long_rollout() -> None:
    rules = Rules(max_off_policy_steps=2, stale="mask", advantage="mean", row_tokens=32)
    long = fresh(0.0, (2, 4), (5, 2))
    verdict = judge(group_of(fresh(1.0), long), 6, rules)
    assert verdict.trained.left_out == {}
    assert trained_tokens(Member(1, long), 6, rules).sum() == 2


def test_a_group_whose_members_are_all_stale_is_closed_as_stale() -> None:
    assert judge(group_of(fresh(1.0, (2, 6)), fresh(0.0, (1, 6))), 6, RULES).close == "stale"


def test_members_aborted_as_too_late_count_as_stale() -> None:
    late: dict[str, Any] = {"error": Failure(kind="stale", message=""), "group": 7}
    assert judge(group_of(failed_rollout(**late), failed_rollout(**late)), 6, RULES).close == "stale"


def test_a_rollout_longer_than_a_row_is_too_long() -> None:
    rules = Rules(max_off_policy_steps=2, stale="drop", advantage="mean", row_tokens=8)
    assert judge(group_of(fresh(1.0), fresh(0.0)), 6, rules).close == "too_long"


def ended(reward: float, finish: str = "stop") -> Rollout:
    """A rollout whose last reply ended by itself, or met its token limit."""
    return msgspec.structs.replace(
        fresh(reward),
        turns=[Turn(context=5, sampled=4, cached=0, finish="length"), Turn(3, 2, 9, finish)],  # type: ignore[arg-type]
    )


TRUNCATED = (ended(1.0), ended(0.5), ended(0.0, "length"))


def judged(truncated: str, *rollouts: Rollout) -> Verdict:
    rules = msgspec.structs.replace(RULES, truncated=truncated)
    return judge(group_of(*rollouts), 6, rules)


def test_a_truncated_rollout_is_trained_as_any_other_unless_asked_otherwise() -> None:
    verdict = judged("train", *TRUNCATED)
    assert verdict.trained.advantages == [0.5, 0.0, -0.5]
    assert verdict.trained.left_out == {}


def test_a_masked_truncated_rollout_counts_in_the_baseline_alone() -> None:
    verdict = judged("mask", *TRUNCATED)
    assert verdict.trained.advantages == [0.5, 0.0, None]
    assert verdict.trained.left_out == {"2": "truncated"}
    assert verdict.trained.rewards == [1.0, 0.5, 0.0]


def test_a_dropped_truncated_rollout_does_not_count_in_the_baseline() -> None:
    verdict = judged("drop", *TRUNCATED)
    assert verdict.trained.advantages == [0.25, -0.25, None]
    assert verdict.trained.left_out == {"2": "truncated"}
    assert verdict.trained.rewards == [1.0, 0.5, 0.0]


def test_a_group_whose_members_are_all_truncated_is_closed_as_truncated() -> None:
    for truncated in ("mask", "drop"):
        assert judged(truncated, ended(1.0, "length"), ended(0.0, "length")).close == "truncated"


def test_one_member_beside_dropped_ones_has_no_baseline() -> None:
    verdict = judged("drop", ended(1.0), ended(0.0, "length"))
    assert verdict.close == "truncated"
    assert verdict.trained.advantages == [None, None]


def test_members_that_agree_beside_masked_ones_teach_what_the_baseline_says() -> None:
    assert judged("mask", ended(1.0), ended(1.0), ended(0.0, "length")).close is None
    assert judged("drop", ended(1.0), ended(1.0), ended(0.0, "length")).close == "no_signal"


def test_what_failed_is_an_error_and_not_truncated() -> None:
    failed = failed_rollout(group=7, turns=ended(0.0, "length").turns)
    assert judged("mask", ended(1.0), ended(0.0), failed).trained.left_out == {"2": "error"}


def test_a_long_rollout_is_cut_after_a_row_where_that_is_asked_for() -> None:
    rules = msgspec.structs.replace(RULES, row_tokens=8, too_long="cut")
    long = fresh(1.0)
    verdict = judge(group_of(long, fresh(0.0)), 6, rules)
    assert verdict.trained.left_out == {}
    assert kept_sequences(long, rules) == [range(0, 8)]
    # 5 of context, 4 sampled, 3 of context, 2 sampled: three of the first reply are left.
    assert trained_tokens(Member(1, long), 6, rules).tolist() == [False] * 5 + [True] * 3 + [False] * 6
    assert kept_tokens(long, rules).sum() == 3


def test_each_sequence_of_a_rollout_is_cut_on_its_own() -> None:
    rules = msgspec.structs.replace(RULES, row_tokens=6, too_long="cut")
    two = msgspec.structs.replace(fresh(1.0), starts=[1])
    assert kept_sequences(two, rules) == [range(0, 6), range(9, 14)]
    assert np.flatnonzero(trained_tokens(Member(1, two), 6, rules)).tolist() == [5, 12, 13]


def test_a_rollout_of_which_nothing_sampled_is_left_is_too_long() -> None:
    rules = msgspec.structs.replace(RULES, row_tokens=5, too_long="cut")
    assert judge(group_of(fresh(1.0), fresh(0.0)), 6, rules).close == "too_long"


def test_only_the_longest_training_sequence_of_a_rollout_must_fit_a_row() -> None:
    rules = Rules(max_off_policy_steps=2, stale="drop", advantage="mean", row_tokens=9)
    parted = [msgspec.structs.replace(fresh(reward), starts=[1]) for reward in (1.0, 0.0)]
    assert judge(group_of(*parted), 6, rules).close is None
    rules = Rules(max_off_policy_steps=2, stale="drop", advantage="mean", row_tokens=8)
    assert judge(group_of(*parted), 6, rules).close == "too_long"


def test_bound_zero_takes_only_the_newest_weights() -> None:
    rules = Rules(max_off_policy_steps=0, stale="drop", advantage="mean", row_tokens=32)
    verdict = judge(group_of(fresh(1.0, (5, 6)), fresh(0.0, (4, 6))), 6, rules)
    assert verdict.trained.left_out == {"1": "stale"}


def test_a_version_from_the_future_is_refused() -> None:
    with pytest.raises(FutureVersion):
        judge(group_of(fresh(1.0, (6, 6)), fresh(0.0)), 6, RULES)
