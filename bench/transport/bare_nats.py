"""The limit of ours: the same bytes through the same server with nats-py alone, encoded before and decoded never."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from schemas import encode

from .headrace_log import NatsServer, address_of, event_of
from .rollouts import DISTINCT, Sampled
from .way import Sent, Way, window

STREAM, SUBJECT, DURABLE = "BARE", "bare.rollout", "bare"


class BareServer(NatsServer):
    """The embedded server with one stream of nats-py's making."""

    async def prepare(self) -> None:
        client = await _client(self.place)
        await client.jetstream().add_stream(name=STREAM, subjects=[SUBJECT])
        await client.close()


async def _client(place: str) -> Any:
    address = address_of(place, "admin")
    return await nats.connect(
        address.url, user=address.user, password=address.password, max_reconnect_attempts=-1, reconnect_time_wait=0.1
    )


class BareWriter:
    """Pipelined, with nats-py's quickest publication that is acknowledged, in a window."""

    def __init__(self, place: str) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_client(place))
        self._payloads: dict[tuple[int, int], bytes] = {}

    def rest(self) -> None:
        self._runner.run(asyncio.sleep(0.01))

    def write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        self._runner.run(self._write(rollouts, sent))

    async def _write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        stream, answers = None, []
        for sampled in rollouts:
            stream = stream or self._client.jetstream(publish_async_max_pending=window(len(sampled.tokens)))
            answer = await stream.publish_async(SUBJECT, self._payload(sampled))
            answer.add_done_callback(lambda _, number=sampled.number: sent(number))
            answers.append(answer)
        await asyncio.gather(*answers)

    def _payload(self, sampled: Sampled) -> bytes:
        """Encoded when it is first wanted, which is in the round that is not counted."""
        content = (len(sampled.tokens), sampled.number % DISTINCT)
        if content not in self._payloads:
            self._payloads[content] = encode(event_of(sampled))
        return self._payloads[content]


class BareReader:
    """Batch pulls of a durable consumer, each batch acknowledged by its last message."""

    def __init__(self, place: str) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(place))

    async def _open(self, place: str) -> None:
        self._client = await _client(place)
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=-1)
        self._pull = await self._client.jetstream().pull_subscribe(SUBJECT, DURABLE, stream=STREAM, config=config)

    def rest(self) -> None:
        self._runner.run(asyncio.sleep(0.01))

    def read(self, count: int, length: int) -> None:
        self._runner.run(self._read(count, window(length)))

    async def _read(self, count: int, batch: int) -> None:
        while count:
            try:
                messages = await self._pull.fetch(min(batch, count), timeout=5.0)
            except TimeoutError:
                continue
            await messages[-1].ack()
            count -= len(messages)

    def take(self, timeout_s: float) -> int | None:
        raise NotImplementedError("what is left in NATS is shown by our own way")

    def clear(self) -> None:
        self._runner.run(self._client.jetstream().purge_stream(STREAM))


BARE = Way("bare NATS round trip", BareServer, BareWriter, BareReader)
