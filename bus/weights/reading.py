"""Reading an object by its chunks: through a consumer of its own, which also shows the trainer that it is read.

nats-py's own ``get`` takes time that grows with the square of the size.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any

from bus.patience import Patience
from bus.received import Received, origin_of
from bus.threads import in_thread
from bus.wire import API
from schemas import BusError, WeightsError

from .bucket import Bucket
from .objects import ObjectInfo, chunk_subject

log = logging.getLogger("headrace.bus")

BATCH_BYTES = 8 * 1024 * 1024
"""What one pull asks for. Two batches are in memory: one that comes, and one that is written."""
INACTIVE_S = 30.0
"""The consumer of a reader that was killed is gone after so long."""
QUIET_S = 5.0
FAREWELL_S = 2.0


async def read_object(bucket: Bucket, info: ObjectInfo, take: Callable[[list[bytes]], None]) -> None:
    """Give all chunks to ``take``, in order, some at a time; it is called in a thread.

    A lost connection or a server that starts again are waited out, with a log line each 10 s; what was read is not
    read again. Raises WeightsError where the object is gone or incomplete, and what ``take`` raises.
    """
    reader = _ChunkReader(bucket, info)
    taking: asyncio.Future[None] | None = None
    try:
        await reader.begin()
        while batch := await reader.next():
            # The next batch comes while this one is hashed and written.
            if taking is not None:
                await asyncio.shield(taking)
            taking = in_thread(take, batch)
        if taking is not None:
            await asyncio.shield(taking)
    finally:
        if taking is not None:
            await asyncio.wait([taking])  # ``take`` must have ended when this has.
            taking.exception()
        await reader.close()


class _ChunkReader:
    """A position in an object."""

    def __init__(self, bucket: Bucket, info: ObjectInfo) -> None:
        self._bucket = bucket
        self._info = info
        self._subject = chunk_subject(bucket.name, info.nuid)
        self._batch = min(max(1, BATCH_BYTES // max(1, info.options.max_chunk_size)), 1000)
        self._consumer = ""
        """Name of the consumer; empty where there is none that can be used."""
        self._delivered = 0
        """How many chunks that consumer has handed out."""
        self._read = 0
        """How many chunks were read."""
        self._next = 1
        """Least sequence that the next one can have."""

    async def begin(self) -> None:
        """Show that the object is read, and then see that it is still there: see bucket.py for why in this order."""
        await self._open()
        now = await self._bucket.info(self._info.name)
        if now is None or now.nuid != self._info.nuid:
            raise self._gone()

    async def next(self) -> list[bytes]:
        """The next chunks; none after the last."""
        patience = Patience(f"reading {self._info.description or self._info.name} from {self._bucket.name}")
        while self._read < self._info.chunks:
            if not self._consumer:
                await self._open()
            batch = await self._pull() if self._consumer else []
            if batch:
                patience.rewarded()
                return batch
            await patience.pause(f"{self._read} of {self._info.chunks} chunks came, and no more")
            if not await self._bucket.is_whole(self._info):
                raise self._gone()
        return []

    async def _open(self) -> None:
        """A consumer for what was not read yet; none where that does not see all of it: a copy may lag behind."""
        await self.close()
        name = f"{self._info.nuid}-{secrets.token_hex(4)}"
        config = {
            "name": name,
            "filter_subject": self._subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": int(INACTIVE_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
        }
        stream = self._bucket.stream
        body: dict[str, Any] = {"stream_name": stream, "config": config}
        made = await self._bucket.api(f"CONSUMER.CREATE.{stream}.{name}.{self._subject}", body)
        self._consumer, self._delivered = name, 0
        if made["num_pending"] != self._info.chunks - self._read:
            await self.close()

    async def _pull(self) -> list[bytes]:
        most = min(self._batch, self._info.chunks - self._read)
        body = {"batch": most, "max_bytes": 2 * BATCH_BYTES, "no_wait": True}
        subject = f"{API}.CONSUMER.MSG.NEXT.{self._bucket.stream}.{self._consumer}"
        answer = await self._bucket.wire.collect(subject, body, most=most, quiet_s=QUIET_S)
        chunks = self._in_order(answer.messages)
        if len(chunks) < most:
            log.debug("%s: a pull ended early: %s %s", self._consumer, answer.lost, answer.description)
            self._consumer = ""  # It counts as read what was lost on the way: a new one goes on where we are.
        return chunks

    def _in_order(self, messages: list[Received]) -> list[bytes]:
        """The chunks up to the first that is missing."""
        chunks = []
        for message in messages:
            origin = origin_of(message.reply)
            if origin.consumer_sequence != self._delivered + 1:
                break
            self._delivered, self._next = origin.consumer_sequence, origin.sequence + 1
            chunks.append(message.data)
        self._read += len(chunks)
        return chunks

    def _gone(self) -> WeightsError:
        return WeightsError(
            f"{self._info.description or self._info.name} was pruned from {self._bucket.name} while it was to be "
            "read, or is incomplete there: take a newer version, or let the trainer put it again"
        )

    async def close(self) -> None:
        """Show that it is read no longer. Who cannot say so is forgotten after 30 s."""
        name, self._consumer = self._consumer, ""
        if name:
            with contextlib.suppress(BusError):
                subject = f"{API}.CONSUMER.DELETE.{self._bucket.stream}.{name}"
                await self._bucket.wire.request(subject, timeout_s=FAREWELL_S)
