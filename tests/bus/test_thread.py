"""The NATS thread of a process that computes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bus import Address, Bus, BusThread, Delivery, EmbeddedServer, Inbox, Ledger, Logged, connect, inbox
from bus.settings import LogSettings, WeightsSettings
from schemas import ROLLOUTS, BusError, PublishFailed, ServerUnreachable, Turn
from tests import examples
from tests.waiting import until

from .conftest import DEADLINE_S


def take(box: Inbox, count: int) -> list[int]:
    sequences: list[int] = []
    while len(sequences) < count:
        delivery = box.get(DEADLINE_S)
        assert delivery is not None, f"only {sequences} came"
        sequences.append(delivery.sequence)
    return sequences


@pytest.fixture
def thread(server: EmbeddedServer, run: str) -> Iterator[BusThread]:
    thread = BusThread(server.address("trainer"), run=run, role="trainer", id="t")
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def generator(server: EmbeddedServer, run: str) -> Iterator[BusThread]:
    thread = BusThread(server.address("generator"), run=run, role="generator", id="g")
    thread.start()
    yield thread
    thread.stop()


def publish_rollouts(generator: BusThread, members: range, *, size: int = 0) -> None:
    tokens, turns = bytes(size // 4 * 4), [Turn(context=size // 4, sampled=0, cached=0, finish="stop")]

    async def act(bus: Bus) -> None:
        for member in members:
            await bus.publish(examples.failed_rollout(run=bus.run, member=member, tokens=tokens, turns=turns))

    generator.call(act, 60)


def test_call_returns_what_the_act_returns_and_raises_what_it_raises(thread: BusThread, run: str) -> None:
    async def commit(bus: Bus) -> int:
        ledger = Ledger(bus, "w")
        await ledger.open()
        return await ledger.append(examples.term(run=run))

    assert thread.call(commit, 10) == 1
    with pytest.raises(PublishFailed, match="role trainer may not publish"):
        thread.call(lambda bus: bus.publish(examples.rollout(run=run)), 10)


def test_call_that_takes_too_long_is_ended(thread: BusThread) -> None:
    with pytest.raises(BusError, match=r"has not done it within 0\.05 s"):
        thread.call(lambda _: asyncio.sleep(60), 0.05)


def test_call_that_is_done_as_its_time_ends_is_done(thread: BusThread, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(concurrent.futures.Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().result()
            self.set_result(7)
            raise TimeoutError

    def schedule(coroutine: Coroutine[Any, Any, int], loop: object) -> Late:
        coroutine.close()
        return Late()

    with monkeypatch.context() as patched:
        patched.setattr("bus.thread.asyncio.run_coroutine_threadsafe", schedule)
        assert thread.call(lambda _: asyncio.sleep(0, 7), 0.05) == 7


def test_start_raises_what_connecting_raises() -> None:
    thread = BusThread(Address("nats://127.0.0.1:1"), run="r", role="trainer", id="t")
    with pytest.raises(ServerUnreachable):
        thread.start(timeout_s=0.2)
    thread.stop()


def test_stopped_thread_refuses_calls(server: EmbeddedServer) -> None:
    thread = BusThread(server.address("reader"), run="r", role="reader", id="t")
    thread.start()
    thread.stop()
    thread.stop()
    with pytest.raises(BusError, match="the NATS thread does not run"):
        thread.call(lambda bus: bus.state(ROLLOUTS), 1)


def test_inbox_delivers_in_order_from_the_start_given(thread: BusThread, generator: BusThread) -> None:
    publish_rollouts(generator, range(8))
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=3)
    assert take(box, 6) == [3, 4, 5, 6, 7, 8]
    assert box.get(0.01) is None


def test_ack_through_settles_up_to_the_mark_and_not_beyond(thread: BusThread, generator: BusThread) -> None:
    publish_rollouts(generator, range(6))
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=1)
    take(box, 6)
    for mark in (4, 2, 5):
        box.ack_through(mark)
        until(lambda mark=mark: thread.call(lambda _: box.consumer.info(), 10).ack_floor == max(4, mark))  # type: ignore[misc]


def test_ack_through_is_sent_before_the_thread_ends(
    server: EmbeddedServer, run: str, thread: BusThread, generator: BusThread
) -> None:
    publish_rollouts(generator, range(3))
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=1)
    take(box, 3)
    box.ack_through(3)
    thread.stop()
    again = BusThread(server.address("trainer"), run=run, role="trainer", id="t")
    again.start()
    consumer = again.call(lambda bus: bus.consumer(ROLLOUTS, "trainer", ack="all", ack_wait_s=600), 10)
    assert again.call(lambda _: consumer.info(), 10).ack_floor == 3
    again.stop()


def test_inbox_keeps_its_buffer_bounded_by_messages(
    thread: BusThread, generator: BusThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_MESSAGES", 10)
    publish_rollouts(generator, range(40))
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=1)
    until(lambda: box.buffered[0] == 10)
    assert thread.call(lambda _: box.consumer.info(), 10).pending == 30
    taken = []
    while len(taken) < 40:
        taken += take(box, 1)
        assert box.buffered[0] <= 10
    assert taken == list(range(1, 41))


def test_inbox_keeps_its_buffer_bounded_by_bytes(
    thread: BusThread, generator: BusThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(inbox, "FETCH_BYTES", 400_000)
    publish_rollouts(generator, range(20), size=100_000)
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=1)
    until(lambda: box.buffered[1] > 600_000)
    delivered = thread.call(lambda _: box.consumer.info(), 10).delivered
    assert delivered < 10
    taken = []
    while len(taken) < 20:
        assert box.buffered[1] <= 1_000_000
        taken += take(box, 1)
    assert taken == list(range(1, 21))


def test_messages_that_another_process_took_are_read_from_the_stream(
    server: EmbeddedServer, run: str, thread: BusThread, generator: BusThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FETCH_S", 0.1)
    publish_rollouts(generator, range(10))
    other = BusThread(server.address("trainer"), run=run, role="trainer", id="other")
    other.start()
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=1)
    assert take(box, 10) == list(range(1, 11))

    async def steal(bus: Bus) -> list[int]:
        consumer = await bus.consumer(ROLLOUTS, "trainer", ack="all", ack_wait_s=600)
        await consumer.reset(8)
        return [delivery.sequence for delivery in await consumer.fetch(2, 0.5)]

    # Whoever wins the race for 8 to 12, the inbox has each that it has not had exactly once, in order.
    other.call(steal, 30)
    publish_rollouts(generator, range(10, 12))
    other.call(steal, 30)
    assert take(box, 2) == [11, 12]
    other.stop()
    assert box.get(0.3) is None


class OneFetch:
    """A consumer that hands out what it was made with, and then nothing more."""

    name = "stub"

    def __init__(self, fetched: list[Delivery]) -> None:
        self._fetched = fetched

    async def fetch(self, batch: int, timeout_s: float, *, max_bytes: int) -> list[Delivery]:
        if not self._fetched:
            await asyncio.Event().wait()
        fetched, self._fetched = self._fetched, []
        return fetched

    def undelivered(self, logged: Logged) -> Logged:
        return logged


def delivery(sequence: int) -> Delivery:
    """Message ``sequence`` of a stream, with as many bytes."""
    return Delivery(
        sequence=sequence, time=0.0, subject="", headers={}, payload=bytes(sequence), event=None, invalid="a stub",
        delivered=1, reply=f"reply {sequence}", wire=cast("Any", None),
    )  # fmt: skip


@pytest.mark.parametrize(
    "fetched",
    [[1, 2, 5, 6], [1, 2, 2, 5, 6], [5, 6], [6], [1, 2, 3, 4, 5, 6], [4, 6]],
    ids=str,
)
async def test_what_is_missing_in_a_fetch_comes_from_the_stream_in_its_place(fetched: list[int]) -> None:
    async def read(start: int) -> AsyncIterator[Logged]:
        for sequence in range(start, 9):
            yield delivery(sequence)

    consumer = cast("Any", OneFetch([delivery(sequence) for sequence in fetched]))
    box = Inbox(consumer, asyncio.get_running_loop(), start=1, read=read)
    pumping = asyncio.create_task(box.pump())
    assert await asyncio.to_thread(take, box, 6) == [1, 2, 3, 4, 5, 6]
    assert box.buffered == (0, 0)
    pumping.cancel()


def test_inbox_of_a_deleted_consumer_says_so(
    server: EmbeddedServer, run: str, thread: BusThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FETCH_S", 0.1)
    box = thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=600, start=1)
    admin = BusThread(server.address("admin"), run=run, role="admin", id="a")
    admin.start()
    admin.call(lambda bus: bus.wire.api(f"CONSUMER.DELETE.{run}_ROLLOUTS.trainer"), 10)
    admin.stop()
    with pytest.raises(BusError, match=f"nothing more comes from consumer trainer of {run}_ROLLOUTS: .* was deleted"):
        box.get(DEADLINE_S)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that drops clients which leave six pings, 0.7 s apart, unanswered."""
    server = EmbeddedServer.start(tmp_path)
    config = server.folder / "nats.conf"
    text = config.read_text().replace('ping_interval: "20s"', 'ping_interval: "700ms"')
    config.write_text(text.replace("ping_max: 3", "ping_max: 6") + "debug: true\n")  # whom it drops is said so
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: "Reloaded: ping_max" in (server.folder / "logs" / "nats.log").read_text())
    yield server
    server.stop()


BUSY_S = 8.0
"""Longer than the server waits for answers, which is 5.6 s: the computation takes all cores, and the thread is late."""


def test_thread_answers_pings_while_the_main_thread_computes(
    impatient: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    thread = BusThread(impatient.address("supervisor"), run="r", role="supervisor", id="t")
    thread.start()
    matrix = np.random.default_rng(0).standard_normal((2000, 2000))
    ends = time.monotonic() + BUSY_S
    while time.monotonic() < ends:
        matrix @ matrix  # some 0.3 s in one call that holds no lock of Python's
    assert thread.call(lambda bus: bus.apply_topology(LogSettings(), WeightsSettings()), 10)
    thread.stop()
    assert "lost" not in caplog.text


async def test_loop_that_computes_itself_is_dropped(
    impatient: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    bus = await connect(impatient.address("supervisor"), run="r", role="supervisor", id="t")
    said = impatient.folder / "logs" / "nats.log"
    until(lambda: "Stale Client Connection" in said.read_text())  # holds the loop up
    assert await bus.apply_topology(LogSettings(), WeightsSettings())
    await bus.close()
    assert "lost" in caplog.text
