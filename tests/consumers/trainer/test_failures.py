from __future__ import annotations

import pytest

from consumers.trainer.failures import WINDOW_GROUPS, FailureWatch
from consumers.trainer.groups import Group, Member
from schemas import Failure, Rollout, RunError
from tests.examples import failed_rollout, rollout


def group_of(*rollouts: Rollout) -> Group:
    return Group(0, len(rollouts), {i: Member(i + 1, each) for i, each in enumerate(rollouts)})


def test_a_run_whose_rollouts_mostly_fail_is_ended_with_their_words() -> None:
    watch = FailureWatch()
    for _ in range(WINDOW_GROUPS - 1):
        watch.take(group_of(failed_rollout(), failed_rollout(), rollout()))
    with pytest.raises(RunError, match=r"32 of the last 48 rollouts failed.*environment.*division by zero"):
        watch.take(group_of(failed_rollout(), failed_rollout(), rollout()))


def test_some_failures_are_borne() -> None:
    watch = FailureWatch()
    for _ in range(3 * WINDOW_GROUPS):
        watch.take(group_of(failed_rollout(), rollout()))


def test_rollouts_that_were_too_late_have_not_failed() -> None:
    watch = FailureWatch()
    for _ in range(2 * WINDOW_GROUPS):
        watch.take(group_of(failed_rollout(error=Failure(kind="stale", message="too late"))))
