"""Putting an object: its chunks, many in flight, in order, each once; then the metadata, which makes it an object.

Each chunk says which message of the stream it must follow. So chunks behind one that was refused or lost are refused
too, and one that was stored without our knowing cannot be stored again: after any trouble, the number of chunks in
the stream says exactly where to go on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

import msgspec

from bus.answers import Fault, Unanswered
from bus.patience import Patience
from bus.publication import ALIVE_S, EXPECTED_LAST, STORES_NOTHING, STREAM_FULL, WRONG_SEQUENCE, Ack, why
from schemas import WEIGHTS_BUCKET, WeightsError

from .bucket import Bucket
from .objects import ObjectInfo, Options, chunk_subject, cuts, digest_of, labels, meta_subject

log = logging.getLogger("headrace.bus")

CHUNK_BYTES = 512 * 1024
"""See bench/weights.py. A server with the usual limit of 1 MiB takes it too."""
FLYING_BYTES = 2 * 1024 * 1024
"""Not yet acknowledged. More than a line's queue holds is lost there and sent again: 8 MiB through one of 4 MB took
four times as long."""
ACK_TIMEOUT_S = 10.0
"""A slow line may need it for what flies; chunks that are late are stored all the same, and counted."""
HEADER_BYTES = 4096


class _Interfered(Exception):
    """Somebody else has written to the bucket meanwhile."""


async def put_object(
    bucket: Bucket,
    name: str,
    payload: memoryview,
    sha256: str,
    *,
    versions: frozenset[int] = frozenset(),
    base: str = "",
) -> bool:
    """Make ``payload``, whose digest is ``sha256``, durable under ``name``. Whether it had to be sent.

    It is not where the same lies there whole. ``versions``: of the weights, if they are any. ``base``: of a delta.
    A server that is away and a full bucket are waited out, with a log line each 10 s. Raises WeightsError or Denied
    where waiting cannot help.
    """
    there = await bucket.info(name)
    if there is not None and there.digest == digest_of(sha256) and await bucket.is_whole(there):
        await label_object(bucket, there, versions)
        return False
    while True:
        sender = _ChunkSender(bucket, name, payload)
        try:
            await sender.send()
            break
        except _Interfered as error:
            # Another trainer that does not know yet that it is fenced, or a person with the nats CLI.
            log.warning("%s: begun anew: %s", sender.what, error)
            await bucket.purge_chunks(sender.nuid)
    metadata, description = labels(versions, base)
    info = ObjectInfo(
        name=name,
        description=description,
        metadata=metadata,
        options=Options(CHUNK_BYTES),
        bucket=bucket.name,
        nuid=sender.nuid,
        size=payload.nbytes,
        chunks=sender.chunks,
        digest=digest_of(sha256),
    )
    await _announce(bucket, info)
    return True


async def label_object(bucket: Bucket, info: ObjectInfo, versions: frozenset[int]) -> None:
    """Have a stored object say these versions."""
    metadata, description = labels(versions, info.base)
    if info.metadata != metadata or info.description != description:
        await _announce(bucket, msgspec.structs.replace(info, metadata=metadata, description=description))


async def _announce(bucket: Bucket, info: ObjectInfo) -> None:
    """Store the metadata in place of earlier one. It may be done twice."""
    what = f"putting the metadata of {info.name} into {bucket.name}"
    subject, body = meta_subject(bucket.name, info.name), msgspec.json.encode(info)
    with bucket.bus.publishing(what) as patience:
        while (fault := await _sent(bucket, subject, body, {"Nats-Rollup": "sub"}, what)) is not None:
            await _await_remedy(bucket, info.nuid, fault, patience)
        patience.rewarded()


class _ChunkSender:
    """Sends the chunks of one object under a nuid of its own."""

    def __init__(self, bucket: Bucket, name: str, payload: memoryview) -> None:
        self._bucket = bucket
        self._payload = payload
        self._cuts = cuts(payload.nbytes, CHUNK_BYTES)
        self.nuid = secrets.token_hex(11)
        self.what = f"putting {name} into {bucket.name}"
        self._subject = chunk_subject(bucket.name, self.nuid)

    @property
    def chunks(self) -> int:
        return len(self._cuts)

    async def send(self) -> None:
        """Return when all chunks are stored. Raises _Interfered, WeightsError or Denied."""
        self._require_payload()
        self._base, sent = await self._bucket.progress(self.nuid)
        with self._bucket.bus.publishing(self.what) as patience:
            while (fault := await self._burst(sent)) is not None:
                sent = await self._stored()
                await _await_remedy(self._bucket, self.nuid, fault, patience)
            patience.rewarded()

    def _require_payload(self) -> None:
        most = self._bucket.wire.max_payload_bytes
        if most < CHUNK_BYTES + HEADER_BYTES:
            raise WeightsError(
                f"{self.what}: the server takes messages of at most {most} bytes, and chunks have {CHUNK_BYTES}: "
                "raise max_payload in its configuration to 8 MiB, which rollouts need too"
            )

    async def _stored(self) -> int:
        """How many chunks are stored: the first ones, in order."""
        last, count = await self._bucket.progress(self.nuid)
        if last != self._base + count:
            raise _Interfered(f"{last - self._base - count} other messages came between")
        return count

    async def _burst(self, first: int) -> Fault | None:
        """Send the chunks from number ``first`` on; the first fault that one met, when all have settled."""
        flying: set[asyncio.Task[Fault | None]] = set()
        settled: list[asyncio.Task[Fault | None]] = []
        try:
            for number in range(first, self.chunks):
                if len(flying) * CHUNK_BYTES >= FLYING_BYTES:
                    done, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
                    settled += done
                    if any(task.result() is not None for task in done):
                        break
                flying.add(asyncio.create_task(self._send_one(number), name=f"{number:09}"))
            settled += flying
            await asyncio.gather(*flying)
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)
        # Those behind the first one that failed only say that it did.
        faults = [task.result() for task in sorted(settled, key=lambda task: task.get_name())]
        return next((fault for fault in faults if fault is not None), None)

    async def _send_one(self, number: int) -> Fault | None:
        begin, end = self._cuts[number]
        headers = {EXPECTED_LAST: str(self._base + number)}
        return await _sent(self._bucket, self._subject, bytes(self._payload[begin:end]), headers, self.what)


async def _sent(bucket: Bucket, subject: str, body: bytes, headers: dict[str, str], what: str) -> Fault | None:
    """Send one message; what hindered it, where trying again may help.

    Raises Denied, and WeightsError where the server refuses it for good.
    """
    try:
        message = await bucket.wire.request(subject, body, headers, timeout_s=ACK_TIMEOUT_S)
    except Unanswered as error:
        stuck = not error.no_responders and await bucket.wire.answers(ALIVE_S)
        return Fault(description=f"{error}: {STORES_NOTHING}" if stuck else str(error))
    fault = msgspec.json.decode(message.data, type=Ack).error
    if fault and fault.code == 400 and fault.err_code not in (STREAM_FULL, *WRONG_SEQUENCE):
        raise WeightsError(f"{what}: the server refuses it: {fault}")
    return fault


async def _await_remedy(bucket: Bucket, nuid: str, fault: Fault, patience: Patience) -> None:
    """Wait before the next attempt to put ``nuid``; a full bucket is first rid of what is of no more use."""
    if fault.err_code == STREAM_FULL:
        await bucket.sweep(sparing=nuid)
    await patience.pause(why(fault, WEIGHTS_BUCKET) if fault.code else fault.description)
