"""Our client says and hears what nats-py's does, byte for byte; only with less work."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import nats.aio.client
import nats.errors
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bus import Unanswered
from bus.client import Client
from schemas import TASKS
from tests.conftest import ConnectAs

from .conftest import DEADLINE_S, until

TEXT = some.text(alphabet=some.characters(codec="utf-8"), max_size=20)
NAMES = some.from_regex(r"[A-Za-z0-9-]{1,12}", fullmatch=True)


def sent(client: nats.aio.client.Client, payload: bytes, headers: dict[str, str] | None) -> bytes:
    """What ``client`` would write for a message."""
    with contextlib.suppress(StopIteration):  # It waits for nothing while there is no connection.
        client._send_publish("subject", "reply", payload, len(payload), headers).send(None)
    return b"".join(client._pending)


@settings(deadline=None)
@given(some.binary(max_size=50), some.none() | some.dictionaries(NAMES, TEXT, min_size=1))
def test_a_message_is_sent_as_nats_py_sends_it(payload: bytes, headers: dict[str, str] | None) -> None:
    ours, theirs = Client(), nats.aio.client.Client()
    assert sent(ours, payload, headers) == sent(theirs, payload, headers)
    assert ours._pending_data_size == theirs._pending_data_size
    assert ours.stats == theirs.stats


@pytest.mark.parametrize("name", ["", "two words", "line\r\nbreak", "colon:", "näme"])
def test_a_header_whose_name_nobody_could_read_is_not_sent(name: str) -> None:
    client = Client()
    with pytest.raises(nats.errors.BadHeaderError):
        sent(client, b"", {name: "value"})
    assert client._pending == []


async def test_a_request_that_ended_leaves_nothing_behind(connect_as: ConnectAs) -> None:
    bus = await connect_as("admin")
    await bus.state(TASKS)
    silent = await bus.wire.subscribe("silence", _ignore)
    with pytest.raises(Unanswered, match=r"no answer within 0\.05 s"):
        await bus.wire.request("silence", timeout_s=0.05)
    with pytest.raises(Unanswered, match="nobody answers"):
        await bus.wire.request("nobody.there", timeout_s=5.0)
    asking = asyncio.create_task(bus.wire.request("silence", timeout_s=60.0))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0)
    assert bus.wire._client._answers == {}
    await bus.wire.unsubscribe(silent)


async def test_a_listener_that_fails_does_not_end_the_connection(connect_as: ConnectAs) -> None:
    bus = await connect_as("admin")

    def fail(message: Any) -> None:
        raise ValueError(message.data)

    failing = await bus.wire.subscribe("noise", fail)
    with pytest.raises(Unanswered, match="no answer"):
        await bus.wire.request("noise", b"bang", timeout_s=0.05)
    assert await bus.wire.answers(5.0)
    assert bus.wire.connected
    await bus.wire.unsubscribe(failing)


async def test_more_than_the_connection_takes_waits_and_is_sent(connect_as: ConnectAs) -> None:
    bus = await connect_as("admin")
    heard: list[int] = []
    listening = await bus.wire.subscribe("bulk", lambda message: heard.append(len(message.data)))
    payload = bytes(1024 * 1024)
    asking = [asyncio.create_task(bus.wire.request("bulk", payload, timeout_s=DEADLINE_S)) for _ in range(12)]
    await until(lambda: len(heard) == 12)
    assert heard == [len(payload)] * 12
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    with pytest.raises(Unanswered, match=r"no answer within 0\.2 s"):
        await bus.wire.request("bulk", timeout_s=0.2)
    await bus.wire.unsubscribe(listening)


def _ignore(message: Any) -> None:
    pass
