"""What a step takes from a complete group, and why it leaves the rest: a pure function of group and step."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import LeftOutReason, TrainedGroup

from .advantages import advantages
from .groups import Group, Member
from .staleness import fresh


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decide what is trained."""

    max_off_policy_steps: int
    """Greatest lag of a trained token, in steps."""
    stale: Literal["drop", "mask"]
    advantage: Literal["std", "mean"]
    row_tokens: int
    """Longest rollout that can be trained, in tokens."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one group for one step."""

    trained: TrainedGroup
    """Who is trained with which advantage, and who is left out."""
    close: LeftOutReason | None
    """Why the whole group is left out for good; None when it can be trained."""


def judge(group: Group, step: int, rules: Rules) -> Verdict:
    """Decide on a complete group for ``step``.

    The baseline is taken over all members with a reward, stale ones included: tokens are left out, not rewards.
    Raises FutureVersion for a rollout that claims weights which do not exist.
    """
    members = group.in_order()
    rewards = [member.rollout.reward for member in members]
    advantages_M = _advantages(rewards, rules)
    left_out: dict[str, LeftOutReason] = {}
    for number, member in enumerate(members):
        reason = _reason(member, step, rules)
        if reason is not None:
            left_out[str(number)] = reason
            advantages_M[number] = None
    trained = TrainedGroup(
        group=group.number,
        env=members[0].rollout.env,
        sequences=[member.sequence for member in members],
        rewards=rewards,
        advantages=advantages_M,
        left_out=left_out,
    )
    return Verdict(trained=trained, close=_close(trained))


def trained_tokens(member: Member, step: int, rules: Rules) -> npt.NDArray[np.bool_]:
    """Bool [T]: the tokens of a rollout that ``step`` trains. Raises FutureVersion."""
    rollout = member.rollout
    trained_T = rollout.loss_mask()
    trained_T[trained_T] = fresh(
        rollout.token_versions(), step=step, bound=rules.max_off_policy_steps, stale=rules.stale
    )
    return trained_T


def _advantages(rewards: list[float | None], rules: Rules) -> list[float | None]:
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2:
        return [None] * len(rewards)
    values = iter(advantages(known, rules.advantage).tolist())
    return [None if reward is None else next(values) for reward in rewards]


def _reason(member: Member, step: int, rules: Rules) -> LeftOutReason | None:
    rollout = member.rollout
    if rollout.error is not None:
        return "stale" if rollout.error.kind == "stale" else "error"
    if len(rollout.tokens) // 4 > rules.row_tokens:
        return "too_long"
    if not trained_tokens(member, step, rules).any():
        return "stale"
    return None


def _close(trained: TrainedGroup) -> LeftOutReason | None:
    """A group that teaches nothing is closed, for the reason that most of its members share."""
    if any(advantages_value for advantages_value in trained.advantages):
        return None
    rewarded = sum(reward is not None for reward in trained.rewards)
    reasons = list(trained.left_out.values())
    if rewarded >= 2 and len(reasons) < len(trained.rewards):
        return "no_signal"
    return Counter(sorted(reasons)).most_common(1)[0][0] if reasons else "no_signal"
