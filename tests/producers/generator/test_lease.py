"""A lease: renewed while it is ours, answered at its end, and left alone when it may be another's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bus import Unanswered
from producers.generator import Lease

LEASE_S = 0.03


class PuppetDelivery:
    """Notes what is said about it; ``in_progress`` takes as long as the test wants."""

    sequence = 7

    def __init__(self) -> None:
        self.said: list[str] = []
        self.renewals = asyncio.Queue[str]()
        self.answers = asyncio.Queue[Exception | None]()

    async def ack(self) -> None:
        self.said.append("ack")

    async def nak(self) -> None:
        self.said.append("nak")

    async def in_progress(self) -> None:
        await self.renewals.put("renew")
        if error := await self.answers.get():
            raise error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The lease's clock, which stands still until a test moves ``now``."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("producers.generator.lease.time", clock)
    return clock


def lease_on(delivery: PuppetDelivery) -> Lease:
    return Lease(delivery, lease_s=LEASE_S)  # type: ignore[arg-type]


async def test_what_is_done_is_acknowledged_and_what_is_not_is_given_back(clock: SimpleNamespace) -> None:
    done, undone = PuppetDelivery(), PuppetDelivery()
    async with lease_on(done) as lease, lease_on(undone):
        lease.done()
    assert (done.said, undone.said) == (["ack"], ["nak"])


async def test_a_group_that_is_whole_in_the_log_is_acknowledged_after_its_lease_too(clock: SimpleNamespace) -> None:
    delivery = PuppetDelivery()
    async with lease_on(delivery) as lease:
        clock.now += 2 * LEASE_S
        lease.done()
    assert delivery.said == ["ack"]


async def test_a_lease_that_has_ended_is_not_given_back(clock: SimpleNamespace) -> None:
    delivery = PuppetDelivery()
    async with lease_on(delivery):
        clock.now += 2 * LEASE_S
    assert delivery.said == []


async def test_a_lease_that_has_ended_is_not_renewed(clock: SimpleNamespace) -> None:
    delivery = PuppetDelivery()
    async with lease_on(delivery) as lease:
        clock.now += 2 * LEASE_S
        await lease._beating
    assert delivery.renewals.empty()


async def test_an_answer_that_comes_after_the_lease_renews_nothing(clock: SimpleNamespace) -> None:
    delivery = PuppetDelivery()
    async with lease_on(delivery) as lease:
        await delivery.renewals.get()
        clock.now += 2 * LEASE_S
        delivery.answers.put_nowait(None)
        await lease._beating
        assert not lease.held


async def test_a_renewal_counts_from_its_question(clock: SimpleNamespace) -> None:
    delivery = PuppetDelivery()
    async with lease_on(delivery) as lease:
        await delivery.renewals.get()
        clock.now = 0.9 * LEASE_S
        delivery.answers.put_nowait(None)
        await delivery.renewals.get()
        clock.now = 1.1 * LEASE_S
        assert not lease.held, "the server may have renewed it as early as at 0"


async def test_a_process_that_stood_still_says_so(clock: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    delivery = PuppetDelivery()
    async with lease_on(delivery) as lease:
        await asyncio.sleep(0)
        clock.now += 3.0  # an environment that blocks the event loop
        await lease._beating
    assert "lease on task 7 could not be renewed for 3 s" in caplog.text
    assert "an environment blocks its event loop" in caplog.text
    assert "lease on task 7 ended before the group did" in caplog.text
    assert delivery.renewals.empty()


async def test_a_failed_renewal_is_tried_again(clock: SimpleNamespace) -> None:
    delivery = PuppetDelivery()
    async with lease_on(delivery) as lease:
        delivery.answers.put_nowait(Unanswered("the connection was lost"))
        for _ in range(2):
            await delivery.renewals.get()
        assert lease.held
