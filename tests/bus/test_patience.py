"""Going on trying, and giving up."""

from __future__ import annotations

import logging

import pytest

from bus import OutOfPatience
from bus.patience import LONGEST_PAUSE_S, Patience


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses taken; a clock of its own moves by them."""
    pauses: list[float] = []

    async def sleep(duration_s: float) -> None:
        pauses.append(duration_s)

    monkeypatch.setattr("bus.patience.asyncio.sleep", sleep)
    monkeypatch.setattr("bus.patience.time.monotonic", lambda: sum(pauses))
    return pauses


async def test_pauses_grow_to_a_bound(slept: list[float]) -> None:
    patience = Patience("waiting")
    for _ in range(20):
        await patience.pause("busy")
    assert slept == sorted(slept)
    assert slept[0] < 0.1
    assert slept[-1] == LONGEST_PAUSE_S


async def test_deadline_ends_it_with_the_last_reason(slept: list[float]) -> None:
    patience = Patience("publishing task.v1", deadline_s=3.0)
    while sum(slept) < 3.0:
        await patience.pause("busy")
    with pytest.raises(OutOfPatience, match=r"publishing task\.v1: gave up after 3 s: full") as caught:
        await patience.pause("full")
    assert caught.value.reason == "full"
    assert sum(slept) == pytest.approx(3.0)


async def test_no_attempt_may_take_longer_than_what_is_left(slept: list[float]) -> None:
    patience = Patience("waiting", deadline_s=0.5)
    assert patience.remaining_s(5.0) == pytest.approx(0.5)
    assert patience.remaining_s(0.1) == pytest.approx(0.1)
    assert Patience("waiting").remaining_s(5.0) == 5.0


async def test_a_line_is_logged_each_ten_seconds_and_one_at_the_end(
    slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    patience = Patience("publishing")
    while sum(slept) < 35:
        await patience.pause("the stream is full")
    patience.rewarded()
    assert len(caplog.records) == 4
    assert caplog.records[0].message == "publishing: still trying after 10 s: the stream is full"
    assert caplog.records[-1].message.startswith("publishing: done after")
