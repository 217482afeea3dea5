"""Collecting a batch from an inbox that the test fills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus import Delivery, Logged
from consumers.trainer import Rules
from consumers.trainer.batch import lengths
from consumers.trainer.collector import Collector
from consumers.trainer.failures import WINDOW_GROUPS
from consumers.trainer.groups import Assembly
from schemas import Closed, EventInvalid, Rollout, RunError, Span, Turn, decode, encode, validate
from tests.examples import failed_rollout, packed_logprobs, packed_tokens, rollout, step, task

GOLDEN = Path(__file__).parents[2] / "schemas" / "golden"
RULES = Rules(max_off_policy_steps=1, stale="drop", advantage="mean", row_tokens=32)


DAMAGED = [path for path in sorted(GOLDEN.glob("rollout.v1/*.msgpack")) if path.with_suffix(".error").exists()]


class Empty(Exception):
    """The inbox ran dry: the batch cannot be filled."""


class FullInbox:
    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = list(enumerate(payloads, 1))

    def get(self, timeout_s: float) -> Delivery | None:
        if not self.payloads:
            raise Empty
        return delivery_of(*self.payloads.pop(0))


def delivery_of(sequence: int, payload: bytes) -> Delivery:
    event, invalid = None, None
    try:
        event = decode(payload)
    except EventInvalid as error:
        invalid = error.reason
    rest: dict[str, Any] = {"time": 0.0, "subject": "s", "headers": {}, "delivered": 1, "reply": "", "wire": None}
    return Delivery(sequence=sequence, payload=payload, event=event, invalid=invalid, **rest)


class Written:
    """What the collector wrote; ``issued`` and ``payloads`` are what TASKS and ROLLOUTS tell it."""

    def __init__(self) -> None:
        self.closed: list[Closed] = []
        self.dead: list[tuple[int, str]] = []
        self.issued = 0
        self.asked = 0
        self.payloads: list[bytes] = []

    def close(self, closed: Closed) -> None:
        self.closed.append(closed)

    def bury(self, logged: Logged, reason: str) -> None:
        self.dead.append((logged.sequence, reason))

    def issued_groups(self) -> int:
        self.asked += 1
        return self.issued

    def rollout_at(self, sequence: int) -> Logged | None:
        return delivery_of(sequence, self.payloads[sequence - 1])


def collector(payloads: list[bytes], written: Written, *, groups: int = 1, size: int = 2) -> Collector:
    written.payloads = payloads
    return Collector(
        FullInbox(payloads), Assembly(size), RULES, written, run="demo", groups_per_step=groups, vocabulary=64
    )


def member(group: int, number: int, reward: float, version: int = 0) -> bytes:
    return encode(rollout(group=group, member=number, reward=reward, spans=[Span(version, 0, 6)]))


def pair(group: int, version: int = 0, rewards: tuple[float, float] = (1.0, 0.0)) -> list[bytes]:
    return [member(group, number, reward, version) for number, reward in enumerate(rewards)]


def idle() -> None:
    pass


def test_the_lowest_complete_groups_are_taken_first() -> None:
    written = Written()
    collecting = collector([*pair(5), *pair(3)], written)
    groups, _ = collecting.collect(1, idle)
    assert [group.group for group in groups] == [5], "group 3 had not arrived when the batch was full"
    collecting = collector([member(5, 0, 1.0), *pair(3), member(5, 1, 0.0)], written, groups=2)
    groups, rollouts = collecting.collect(1, idle)
    assert [group.group for group in groups] == [3, 5]
    assert sorted(rollouts) == [1, 2, 3, 4]


def test_a_group_that_teaches_nothing_is_closed_at_once_and_counted() -> None:
    written = Written()
    collecting = collector([*pair(0, rewards=(0.5, 0.5)), *pair(1)], written)
    collecting.collect(1, idle)
    assert [(closed.group, closed.reason) for closed in written.closed] == [(0, "no_signal")]
    tally = collecting.next_tally()
    assert tally.left_out == {"no_signal": 2}
    assert tally.metrics()["reward_mean"] == pytest.approx(0.5)


def test_held_groups_are_judged_again_for_a_later_step() -> None:
    written = Written()
    collecting = collector([member(1, 0, 1.0), *pair(0), member(1, 1, 0.0), *pair(2, version=2)], written)
    groups, _ = collecting.collect(1, idle)
    collecting.settle(groups)
    groups, _ = collecting.collect(3, idle)
    assert [group.group for group in groups] == [2]
    assert [(closed.group, closed.reason) for closed in written.closed] == [(1, "stale")]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\x81garbage", "not a known event"),
        (member(0, 2, 1.0), "member 2 of a group, and a group has 2"),
        (encode(rollout(spans=[Span(0, 0, 6)]))[:-9], "not a known event"),
        (encode(task(group=0)), "it is not a rollout"),
        *((path.read_bytes(), path.with_suffix(".error").read_text().strip()) for path in DAMAGED),
    ],
)
def test_what_cannot_be_used_goes_to_dead_and_the_mark_passes_it(payload: bytes, words: str) -> None:
    written = Written()
    collecting = collector([payload, *pair(1)], written)
    groups, _ = collecting.collect(1, idle)
    ((sequence, reason),) = written.dead
    assert sequence == 1
    assert words in reason
    assert collecting.low_water(groups) == 3


UNUSABLE = [
    ({"spans": [Span(7, 0, 6)]}, "it claims weights 7, but the newest are 0"),
    ({"spans": [Span(0, 0, 3), Span(1, 3, 6)]}, "it claims weights 1, but the newest are 0"),
    ({"tokens": packed_tokens([64] * 14)}, "it has token id 64, and the model has 64 tokens"),
    (
        {"turns": [Turn(0, 4, 0, "stop"), Turn(8, 2, 0, "stop")]},
        "its first token was sampled, with nothing before it",
    ),
    (
        {"turns": [Turn(0, 0, 0, "stop"), Turn(0, 4, 0, "stop"), Turn(8, 2, 0, "stop")]},
        "its first token was sampled, with nothing before it",
    ),
    (
        {"turns": [Turn(0, 0, 0, "stop"), Turn(8, 6, 0, "stop")], "starts": [1]},
        "its first training sequence is empty",
    ),
    (
        {
            "turns": [Turn(1, 1, 0, "stop")] * 1025, "starts": list(range(1, 1025)), "spans": [Span(0, 0, 1025)],
            "tokens": packed_tokens([1] * 2050), "logprobs": packed_logprobs([-1.0] * 1025),
        },
        "it has 1025 training sequences, more than 1024",
    ),
]  # fmt: skip


def test_an_empty_turn_before_the_first_words_does_no_harm() -> None:
    written = Written()
    turns = [Turn(0, 0, 0, "stop"), Turn(8, 6, 0, "stop")]
    payloads = [
        encode(rollout(group=0, member=number, reward=float(number), spans=[Span(0, 0, 6)], turns=turns))
        for number in range(2)
    ]
    collecting = collector(payloads, written)
    groups, rollouts = collecting.collect(1, idle)
    assert written.dead == []
    assert lengths(groups, rollouts, RULES) == [14, 14]


@pytest.mark.parametrize(("fields", "reason"), UNUSABLE)
def test_what_was_sampled_and_cannot_be_used_goes_to_dead_and_counts_as_failed(
    fields: dict[str, Any], reason: str
) -> None:
    """Its group would be open for ever without it, and hold the mark and a place among the open groups."""
    written = Written()
    unusable = encode(rollout(**{"group": 0, "member": 0, "reward": 1.0, "spans": [Span(0, 0, 6)]} | fields))
    collecting = collector([unusable, member(0, 1, 0.0), *pair(1)], written)
    groups, rollouts = collecting.collect(1, idle)
    assert written.dead == [(1, reason)]
    assert [(closed.group, closed.reason, closed.rewards) for closed in written.closed] == [(0, "error", [None, 0.0])]
    assert set(rollouts) == {3, 4}
    assert collecting.low_water(groups) == 4
    tally = collecting.next_tally()
    assert tally.left_out == {"error": 2}
    assert tally.metrics()["rewards"] == 3


def test_a_group_of_which_one_rollout_cannot_be_used_is_trained_without_it() -> None:
    written = Written()
    unusable = encode(rollout(group=0, member=2, spans=[Span(9, 0, 6)]))
    collecting = collector([member(0, 0, 1.0), unusable, member(0, 1, 0.0)], written, size=3)
    (group,), _ = collecting.collect(1, idle)
    assert group.sequences == [1, 3, 2]
    assert group.rewards == [1.0, 0.0, None]
    assert group.advantages == [0.5, -0.5, None]
    assert group.left_out == {"2": "error"}


def test_a_run_whose_rollouts_mostly_cannot_be_used_ends_with_their_reason_and_does_not_idle() -> None:
    payloads = [
        encode(rollout(group=group, member=number, spans=[Span(0, 0, 6)], tokens=packed_tokens([64] * 14)))
        for group in range(WINDOW_GROUPS)
        for number in (0, 1)
    ]
    with pytest.raises(RunError, match=r"32 of the last 32 rollouts failed.*\(refused\).*it has token id 64"):
        collector(payloads, Written()).collect(1, idle)


def test_garbage_without_end_stops_nothing() -> None:
    written = Written()
    collecting = collector([*[b"garbage"] * 500, *pair(0)], written)
    groups, _ = collecting.collect(1, idle)
    assert [group.group for group in groups] == [0]
    assert len(written.dead) == 500
    assert collecting.low_water(groups) == 502


@pytest.mark.parametrize("rewards", [(1e6, -1e6), (1e6, 1e6), (5e-324, -0.0)])
@pytest.mark.parametrize("advantage", ["std", "mean"])
def test_the_most_extreme_figures_that_are_valid_give_events_that_are_valid(
    rewards: tuple[float, float], advantage: str
) -> None:
    written = Written()
    extreme = [
        encode(rollout(group=0, member=number, reward=reward, metrics={"m": 1e12}, spans=[Span(0, 0, 6)]))
        for number, reward in enumerate(rewards)
    ]
    rules = msgspec.structs.replace(RULES, advantage=advantage)
    payloads = [*extreme, *pair(1)]
    written.payloads = payloads
    collecting = Collector(
        FullInbox(payloads), Assembly(2), rules, written, run="demo", groups_per_step=1, vocabulary=64
    )
    groups, _ = collecting.collect(1, idle)
    tally = collecting.next_tally()
    for closed in written.closed:
        validate(closed)
    packing = [[list(range(sum(a is not None for group in groups for a in group.advantages)))]]
    validate(step(groups=groups, packing=packing, metrics=tally.metrics(), env_metrics=tally.env_metrics()))


def test_a_second_play_of_a_member_is_a_duplicate() -> None:
    written = Written()
    collecting = collector([member(0, 0, 1.0), member(0, 0, 0.2), member(0, 1, 0.0)], written)
    (group,), _ = collecting.collect(1, idle)
    assert group.sequences == [1, 3]
    assert group.rewards == [1.0, 0.0]
    assert collecting.next_tally().left_out == {"duplicate": 1}


def test_members_that_failed_are_counted_by_reason() -> None:
    written = Written()
    failed = encode(failed_rollout(group=0, member=1))
    collecting = collector([member(0, 0, 1.0), failed, member(0, 2, 0.0)], written, size=3)
    collecting.collect(1, idle)
    assert collecting.next_tally().left_out == {"error": 1}


def test_waiting_can_be_ended() -> None:
    collecting = collector(pair(0), Written(), groups=2)

    def interrupt() -> None:
        raise Empty

    with pytest.raises(Empty):
        collecting.collect(1, interrupt)


def test_a_rollout_is_decoded_as_it_was_published() -> None:
    _, rollouts = collector(pair(0), Written()).collect(1, idle)
    assert all(isinstance(each, Rollout) for each in rollouts.values())


def test_a_rollout_of_a_group_that_was_never_issued_goes_to_dead_and_does_not_hold_the_mark() -> None:
    written = Written()
    written.issued = 2
    collecting = collector([member(7, 0, 1.0), *pair(1)], written)
    groups, _ = collecting.collect(1, idle)
    assert [group.group for group in groups] == [1]
    assert written.dead == [(1, "it is of group 7, which was never issued: TASKS ends with group 1")]
    assert collecting.low_water(groups) == 3


def test_tasks_are_asked_about_once_for_each_new_group() -> None:
    written = Written()
    written.issued = 3
    collecting = collector([*pair(2), *pair(0), *pair(1)], written, groups=3)
    collecting.collect(1, idle)
    assert written.asked == 1


def test_a_whole_group_that_was_never_issued_is_not_trained_although_it_came_before_the_first_task() -> None:
    class Later(FullInbox):
        """The dispatcher begins after the first rollouts."""

        def get(self, timeout_s: float) -> Delivery | None:
            written.issued = 0 if len(self.payloads) > 4 else 2
            return super().get(timeout_s)

    written = Written()
    written.payloads = [*pair(9), *pair(0), *pair(1)]
    collecting = Collector(
        Later(written.payloads), Assembly(2), RULES, written, run="demo", groups_per_step=2, vocabulary=64
    )
    groups, _ = collecting.collect(1, idle)
    assert [group.group for group in groups] == [0, 1]
    assert [sequence for sequence, _ in written.dead] == [1, 2]
    assert collecting.low_water(groups) == 6


def test_rollouts_of_a_run_without_a_dispatcher_are_trained() -> None:
    written = Written()
    groups, _ = collector([*pair(9), *pair(3)], written, groups=2).collect(1, idle)
    assert [group.group for group in groups] == [3, 9]
    assert written.dead == []
