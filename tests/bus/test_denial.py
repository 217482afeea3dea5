"""What is denied ends at once, with an error that names the role, the subject and the remedy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bus import Bus, Denied
from schemas import LEDGER, ROLLOUTS, TASKS, PublishFailed
from tests import examples
from tests.conftest import ConnectAs

NEVER_S = 60.0
"""After which whoever is not told that it is denied asks again, or gives up."""
SOON_S = 30.0


def _ignore(message: Any) -> None:
    pass


DENIED: dict[str, tuple[Callable[[Bus], Awaitable[Any]], str]] = {
    "publish": (lambda bus: bus.publish(examples.step(run=bus.run)), "publish to 'hr.{run}.step'"),
    "request": (lambda bus: bus.purge(LEDGER, before=2), "publish to '$JS.API.STREAM.PURGE.{run}_LEDGER'"),
    "several answers": (
        lambda bus: bus.wire.collect(f"$JS.API.Unknown.{bus.run}_TASKS", {}, most=1, quiet_s=60),
        "publish to '$JS.API.Unknown.{run}_TASKS'",
    ),
    "subscribe": (
        lambda bus: bus.wire.subscribe(f"hr-Stored.{bus.run}_TASKS.>", _ignore),
        "subscribe to 'hr-Stored.{run}_TASKS.>'",
    ),
    "make a consumer": (
        lambda bus: bus.consumer(TASKS, "mine", ack="explicit", ack_wait_s=30),
        "publish to '$JS.API.CONSUMER.CREATE.{run}_TASKS.mine'",
    ),
    "make a stream": (lambda bus: bus.wire.api("STREAM.CREATE.other", {}), "publish to '$JS.API.STREAM.CREATE.other'"),
}


@pytest.mark.parametrize("act", DENIED)
async def test_denied_act_ends_soon_and_says_who_may_not_do_what_and_what_to_do(
    connect_as: ConnectAs,
    run: str,
    act: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = await connect_as("reader")
    for patience in ("wire.API_TIMEOUT_S", "wire.API_DEADLINE_S", "publication.ACK_TIMEOUT_S"):
        monkeypatch.setattr(f"bus.{patience}", NEVER_S)
    doing, subject = DENIED[act]
    began = time.monotonic()
    with pytest.raises(PublishFailed) as caught:
        await doing(bus)
    assert time.monotonic() - began < SOON_S
    assert isinstance(caught.value, Denied)
    assert str(caught.value) == (
        f"role reader may not {subject.format(run=run)} (user reader at {bus.wire.address.url}): "
        "use the credentials of a role that may, or extend its permissions on the server"
    )
    # Who was told needs no log line as well.
    assert [record for record in caplog.records if "may not" in record.message] == []
    await bus.state(TASKS)  # The connection itself is none the worse.


async def test_following_a_stream_that_the_role_may_not_read_is_denied(connect_as: ConnectAs) -> None:
    bus = await connect_as("topology")
    with pytest.raises(Denied, match="role topology may not"):
        async for _ in bus.read(ROLLOUTS, follow=True):
            pass


async def test_denial_of_one_act_leaves_the_others_alone(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("operator")
    acts = [bus.publish(examples.control(run=run)), bus.publish(examples.step(run=run)), bus.state(TASKS)]
    control, step, state = await asyncio.gather(*acts, return_exceptions=True)
    assert isinstance(step, Denied)
    assert not isinstance(control, BaseException)
    assert not isinstance(state, BaseException)


async def test_subscription_that_is_denied_or_given_up_is_not_left_behind(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("reader")
    with pytest.raises(Denied):
        await bus.wire.subscribe("other.>", _ignore)
    subscribing = asyncio.create_task(bus.wire.subscribe(f"hr-stored.{run}_TASKS.>", _ignore))
    await asyncio.sleep(0)  # It has subscribed, and waits to hear whether it may.
    subscribing.cancel()
    await asyncio.wait({subscribing})
    inbox = "_INBOX.reader."
    assert [sub.subject for sub in bus.wire._client._subs.values() if not sub.subject.startswith(inbox)] == []
