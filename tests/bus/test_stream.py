"""What others may have stored: it is read like any other message, and is no event where it is none."""

from __future__ import annotations

from typing import Any

import pytest

from bus import Bus, EmbeddedServer, Unanswered
from bus.headers import Headers
from bus.received import Received
from schemas import CONTROL, LEDGER, ROLLOUTS, TASKS, Control, Event, StreamSpec, encode, subject_of
from tests import examples
from tests.conftest import ConnectAs
from tests.raw_publisher import publish_raw

PASSING = {
    "leaderless": b'{"cluster": {"name": "c"}, "state": {"first_seq": 1, "last_seq": 7, "messages": 7, "bytes": 1}}',
    "unavailable": b'{"error": {"code": 503, "err_code": 10008, "description": "temporarily unavailable"}}',
}


@pytest.mark.parametrize("answer", PASSING.values(), ids=PASSING)
async def test_a_cluster_that_has_no_leader_for_a_moment_is_asked_again(
    connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """Any copy answers where a stream has no leader, and what lags behind looks like a log that lost its end."""
    bus = await connect_as("reader")
    ask, passing = bus.wire.request, [Received("s", "", answer, Headers(b""))] * 2

    async def request(*args: Any, **kwargs: Any) -> Received:
        return passing.pop() if passing else await ask(*args, **kwargs)

    monkeypatch.setattr(bus.wire, "request", request)
    assert (await bus.state(TASKS)).last_sequence == 0
    assert passing == []


async def test_a_purge_is_asked_for_until_the_server_is_back(
    connect_as: ConnectAs, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, generator = await connect_as("trainer"), await connect_as("generator")
    for member in range(3):
        await generator.publish(examples.rollout(run=run, member=member))
    ask, lost = trainer.wire.api, [Unanswered("the connection was lost")] * 2

    async def api(path: str, body: dict[str, Any] | None = None) -> Any:
        if lost:
            raise lost.pop()
        return await ask(path, body)

    monkeypatch.setattr(trainer.wire, "api", api)
    await trainer.purge(ROLLOUTS, before=3)
    assert (await generator.state(ROLLOUTS)).first_sequence == 3


HEADERS = {
    "status": b"Status: 404\r\nDescription: No Messages\r\n",
    "heartbeat": b"Status: 100\r\n",
    "place": b"Nats-Stream: x\r\nNats-Subject: x\r\nNats-Sequence: 77\r\nNats-Last-Sequence: 99\r\n",
    "time": b"Nats-Time-Stamp: never\r\nNats-Num-Pending: many\r\n",
    "no UTF-8": b"hr-group: \xff\xfe\r\n",
    "no names": b"nothing\r\n:::\r\n: \r\n",
    "folded": b"hr-group: 1\r\n  2\r\n",
    "another event": b"ce-type: headrace.step.v1\r\nhr-run: other\r\nhr-group: 3\r\nce-datacontenttype: text/plain\r\n",
    "none": b"",
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
async def test_whatever_its_headers_say_a_message_is_read_by_its_payload(
    server: EmbeddedServer, connect_as: ConnectAs, run: str, headers: bytes
) -> None:
    generator, trainer = await connect_as("generator"), await connect_as("trainer")
    events = [examples.rollout(run=run, member=member) for member in range(3)]
    await generator.publish(events[0])
    await publish_raw(server.address("admin"), subject_of(events[1]), encode(events[1]), headers)
    await generator.publish(events[2])
    assert [logged.event async for logged in trainer.read(ROLLOUTS)] == events
    consumer = await trainer.consumer(ROLLOUTS, "trainer", ack="all", ack_wait_s=60)
    assert [delivery.event for delivery in await consumer.fetch(3, 10)] == events
    assert (await consumer.info()).pending == 0


async def test_a_subject_that_is_no_utf8_stops_no_reader(
    server: EmbeddedServer, connect_as: ConnectAs, run: str
) -> None:
    generator, trainer = await connect_as("generator"), await connect_as("trainer")
    consumer = await trainer.consumer(ROLLOUTS, "trainer", ack="all", ack_wait_s=60)
    event = examples.rollout(run=run)
    await publish_raw(server.address("admin"), f"hr.{run}.rollout.".encode() + b"\xff\xfe", encode(event))
    await generator.publish(event)
    read = [logged async for logged in trainer.read(ROLLOUTS)]
    fetched = await consumer.fetch(2, 10)
    for first, second in (read, fetched):
        assert first.event is None
        assert first.subject == f"hr.{run}.rollout.\ufffd\ufffd"
        assert second.event == event


MISPLACED: list[tuple[StreamSpec, str, Event, str]] = [
    (
        ROLLOUTS,
        "rollout.reverse",
        examples.term(),
        "it is a term.v1 of run '{run}', which belongs to subject hr.{run}.term",
    ),
    (ROLLOUTS, "rollout.reverse", examples.rollout(env="guess"), "which belongs to subject hr.{run}.rollout.guess"),
    (ROLLOUTS, "rollout.reverse.deeper", examples.rollout(), "which belongs to subject hr.{run}.rollout.reverse"),
    (TASKS, "task.reverse", examples.rollout(), "it is a rollout.v1 of run"),
    (LEDGER, "closed", examples.step(), "it is a step.v1 of run"),
    (CONTROL, "control", examples.metric(), "it is a metric.v1 of run"),
]


@pytest.mark.parametrize(("spec", "end", "event", "reason"), MISPLACED, ids=lambda value: str(value)[:12])
async def test_an_event_published_where_others_belong_is_none(
    server: EmbeddedServer, connect_as: ConnectAs, run: str, spec: StreamSpec, end: str, event: Event, reason: str
) -> None:
    reader, payload = await connect_as("reader"), _payload(event, run)
    await publish_raw(server.address("admin"), f"hr.{run}.{end}", payload)
    for logged in [*[logged async for logged in reader.read(spec)], await reader.last(spec)]:
        assert logged is not None
        assert logged.event is None
        assert logged.payload == payload
        assert reason.format(run=run) in (logged.invalid or "")


async def test_an_event_of_another_run_is_none_and_a_follower_says_so(
    server: EmbeddedServer, connect_as: ConnectAs, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    operator: Bus = await connect_as("operator")
    await publish_raw(
        server.address("admin"), f"hr.{run}.control", encode(examples.control(run="other", action="limit"))
    )
    await publish_raw(server.address("admin"), f"hr.{run}.control", b"\x00garbage")
    await publish_raw(server.address("admin"), f"hr.{run}.control", b'{"type":"control.v1","run":"x","action":"dance"}')
    await operator.publish(examples.control(run=run))
    async for logged in operator.read(CONTROL, kinds=(Control,), follow=True):
        assert logged.sequence == 4
        break
    assert "message 1 of " in caplog.text
    for words in ("it is a control.v1 of run 'other'", "Expected `object`, got `int`", "Invalid enum value 'dance'"):
        assert words in caplog.text


def _payload(event: Event, run: str) -> bytes:
    return encode(type(event)(**{**{name: getattr(event, name) for name in event.__struct_fields__}, "run": run}))
