"""What a step takes from a complete group, and why it leaves the rest: a pure function of group and step."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import LeftOutReason, Rollout, TrainedGroup

from .advantages import advantages
from .groups import Group, Member
from .packing import runs_of
from .staleness import fresh


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decide what is trained."""

    max_off_policy_steps: int
    """Greatest lag of a trained token, in steps."""
    stale: Literal["drop", "mask"]
    advantage: Literal["std", "mean", "loo"]
    row_tokens: int
    """Longest training sequence, in tokens."""
    truncated: Literal["train", "mask", "drop"] = "train"
    """What becomes of a rollout whose last reply met its token limit."""
    too_long: Literal["drop", "cut"] = "drop"
    """What becomes of a training sequence that is longer than ``row_tokens``."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one group for one step."""

    trained: TrainedGroup
    """Who is trained with which advantage, and who is left out."""
    close: LeftOutReason | None
    """Why the whole group is left out for good; None when it can be trained."""


def judge(group: Group, step: int, rules: Rules) -> Verdict:
    """Decide on a complete group for ``step``.

    The baseline is taken over all members with a reward, stale ones included: tokens are left out, not rewards. Only
    truncated rollouts do not count in it where they are to be dropped.
    Raises FutureVersion for a rollout that claims weights which do not exist.
    """
    members = group.in_order()
    rewards = [member.rollout.reward for member in members]
    compared = [
        None if rules.truncated == "drop" and _truncated(member.rollout) else member.rollout.reward
        for member in members
    ]
    advantages_M = _advantages(compared, rules)
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
    return Verdict(trained=trained, close=_close(trained, compared))


def kept_sequences(rollout: Rollout, rules: Rules) -> list[range]:
    """Where each training sequence lies in ``tokens``, without what is cut off its end.

    What is cut comes after what is kept, so that the log-probabilities of this do not change.
    """
    parts = rollout.sequences()
    return [part[: rules.row_tokens] for part in parts] if rules.too_long == "cut" else parts


def kept_tokens(rollout: Rollout, rules: Rules) -> npt.NDArray[np.bool_]:
    """Bool [T]: the sampled tokens that are not cut off."""
    sampled_T = rollout.loss_mask()
    kept_T = np.zeros_like(sampled_T)
    for part in kept_sequences(rollout, rules):
        kept_T[part.start : part.stop] = sampled_T[part.start : part.stop]
    return kept_T


def trained_tokens(member: Member, step: int, rules: Rules) -> npt.NDArray[np.bool_]:
    """Bool [T]: the tokens of a rollout that ``step`` trains. Raises FutureVersion."""
    rollout = member.rollout
    trained_T = rollout.loss_mask()
    fresh_spans = _fresh_spans(rollout, step, rules)
    if not all(fresh_spans):
        trained_T[trained_T] = np.repeat(fresh_spans, [span.end - span.start for span in rollout.spans])
    return trained_T & kept_tokens(rollout, rules) if rules.too_long == "cut" else trained_T


def trained_runs(member: Member, step: int, rules: Rules) -> list[slice]:
    """Where the tokens that ``step`` trains lie in ``tokens``, in order: the same as ``trained_tokens`` says.

    None crosses from one training sequence into another. Raises FutureVersion.
    """
    if rules.too_long == "drop" and all(_fresh_spans(member.rollout, step, rules)):
        return [reply for reply in member.rollout.replies() if reply.stop > reply.start]
    return runs_of(trained_tokens(member, step, rules))


def _fresh_spans(rollout: Rollout, step: int, rules: Rules) -> list[bool]:
    versions = [span.version for span in rollout.spans]
    return fresh(versions, step=step, bound=rules.max_off_policy_steps, stale=rules.stale)


def _trains(member: Member, step: int, rules: Rules) -> bool:
    """Whether ``step`` trains a token of it. Raises FutureVersion."""
    if rules.too_long == "cut":
        return bool(trained_tokens(member, step, rules).any())
    return any(_fresh_spans(member.rollout, step, rules))  # No span is empty.


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
    if _too_long(rollout, rules):
        return "too_long"
    if rules.truncated != "train" and _truncated(rollout):
        return "truncated"
    if not _trains(member, step, rules):
        return "stale"
    return None


def _too_long(rollout: Rollout, rules: Rules) -> bool:
    """Whether it does not fit, or nothing that was sampled is left of it."""
    if rules.too_long == "drop":
        return max(map(len, rollout.sequences())) > rules.row_tokens
    return rollout.sampled_tokens > 0 and not kept_tokens(rollout, rules).any()


def _truncated(rollout: Rollout) -> bool:
    """Whether its last reply met its token limit."""
    return bool(rollout.turns) and rollout.turns[-1].finish == "length"


def _close(trained: TrainedGroup, compared: list[float | None]) -> LeftOutReason | None:
    """A group that teaches nothing is closed, for the reason that most of its members share.

    compared: rewards of the members that the baseline is taken over.
    """
    if any(advantages_value for advantages_value in trained.advantages):
        return None
    rewarded = sum(reward is not None for reward in compared)
    reasons = list(trained.left_out.values())
    if rewarded >= 2 and len(reasons) < len(trained.rewards):
        return "no_signal"
    return Counter(sorted(reasons)).most_common(1)[0][0] if reasons else "no_signal"
