from __future__ import annotations

from typing import Any

import pytest

from consumers.trainer.groups import Group, Member
from consumers.trainer.judgement import Rules, judge, trained_tokens
from consumers.trainer.staleness import FutureVersion
from schemas import Failure, Rollout, Span
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


def test_bound_zero_takes_only_the_newest_weights() -> None:
    rules = Rules(max_off_policy_steps=0, stale="drop", advantage="mean", row_tokens=32)
    verdict = judge(group_of(fresh(1.0, (5, 6)), fresh(0.0, (4, 6))), 6, rules)
    assert verdict.trained.left_out == {"1": "stale"}


def test_a_version_from_the_future_is_refused() -> None:
    with pytest.raises(FutureVersion):
        judge(group_of(fresh(1.0, (6, 6)), fresh(0.0)), 6, RULES)
