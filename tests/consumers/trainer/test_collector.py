"""Collecting a batch from an inbox that the test fills."""

from __future__ import annotations

from typing import Any

import pytest

from bus import Delivery
from consumers.trainer import Rules
from consumers.trainer.collector import Collector
from consumers.trainer.groups import Assembly
from schemas import Closed, EventInvalid, Rollout, Span, decode, encode
from tests.examples import failed_rollout, packed_tokens, rollout

RULES = Rules(max_off_policy_steps=1, stale="drop", advantage="mean", row_tokens=32)


class Empty(Exception):
    """The inbox ran dry: the batch cannot be filled."""


class FullInbox:
    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = list(enumerate(payloads, 1))

    def get(self, timeout_s: float) -> Delivery | None:
        if not self.payloads:
            raise Empty
        sequence, payload = self.payloads.pop(0)
        event, invalid = None, None
        try:
            event = decode(payload)
        except EventInvalid as error:
            invalid = error.reason
        rest: dict[str, Any] = {"time": 0.0, "subject": "s", "headers": {}, "delivered": 1, "reply": "", "wire": None}
        return Delivery(sequence=sequence, payload=payload, event=event, invalid=invalid, **rest)


class Written:
    def __init__(self) -> None:
        self.closed: list[Closed] = []
        self.dead: list[tuple[int, str]] = []

    def bury(self, delivery: Delivery, reason: str) -> None:
        self.dead.append((delivery.sequence, reason))


def collector(payloads: list[bytes], written: Written, *, groups: int = 1) -> Collector:
    return Collector(
        FullInbox(payloads),
        Assembly(2),
        RULES,
        run="demo",
        groups_per_step=groups,
        vocabulary=64,
        close=written.closed.append,
        bury=written.bury,
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
        (member(0, 0, 1.0, version=7), "claims weights 7, but the newest are 0"),
        (encode(rollout(run="other", spans=[Span(0, 0, 6)])), "belongs to run 'other'"),
        (member(0, 2, 1.0), "member 2 of a group, and a group has 2"),
        (encode(rollout(spans=[Span(0, 0, 6)]))[:-9], "not a known event"),
        (
            encode(rollout(member=0, spans=[Span(0, 0, 6)], tokens=packed_tokens([64] * 14))),
            "it has token id 64, and the model has 64 tokens",
        ),
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
    collecting = Collector(
        FullInbox([member(0, 0, 1.0), failed, member(0, 2, 0.0)]),
        Assembly(3),
        RULES,
        run="demo",
        groups_per_step=1,
        vocabulary=64,
        close=written.closed.append,
        bury=written.bury,
    )
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
