from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import StreamState
from consumers.trainer.log_room import Room, RoomWatch, room


def state(*, first: int = 1, last: int, size: int) -> StreamState:
    messages = last - first + 1
    return StreamState(first_sequence=first, last_sequence=last, messages=messages, bytes=messages * size, deleted=0)


def test_the_steps_that_fit_are_reckoned_from_those_that_were() -> None:
    # 10 steps, 40 messages each, of 100 bytes: 4,000 bytes a step.
    now = room(state(last=400, size=100), limit_bytes=50_000, committed=10)
    assert now == Room(used=0.8, steps_left=2.5)
    assert now.gauges == {"log_used": 0.8, "log_steps_left": 2.5}


def test_what_was_purged_counts_as_what_is_there() -> None:
    now = room(state(first=301, last=400, size=100), limit_bytes=50_000, committed=10)
    assert now == Room(used=0.2, steps_left=10.0)


def test_nothing_is_said_before_there_is_anything_to_reckon_with() -> None:
    assert room(state(last=0, size=100), limit_bytes=1000, committed=1) is None
    assert room(state(last=4, size=100), limit_bytes=1000, committed=0) is None


def test_it_is_said_once_at_each_further_share() -> None:
    watch = RoomWatch()
    said = [used for used in range(70, 101) if watch.news(Room(used=used / 100 + 1e-9, steps_left=7.4)) is not None]
    assert said == [80, 85, 90, 95, 100]


def test_a_jump_is_said_once() -> None:
    watch = RoomWatch()
    words = watch.news(Room(used=0.93, steps_left=7.4))
    assert words is not None
    assert words.startswith("ROLLOUTS holds 93 % of its limit: about 7 more steps fit, and then generators wait")
    assert "raise log.max_gib" in words
    assert watch.news(Room(used=0.94, steps_left=7.0)) is None


@given(st.floats(0, 0.7999))
def test_room_that_is_not_scarce_has_no_words(used: float) -> None:
    assert Room(used=used, steps_left=1.0).words() is None
    assert RoomWatch().news(Room(used=used, steps_left=1.0)) is None


def test_more_than_the_limit_leaves_no_step() -> None:
    now = room(state(last=400, size=100), limit_bytes=30_000, committed=10)
    assert now is not None
    assert now.steps_left == pytest.approx(0.0)
