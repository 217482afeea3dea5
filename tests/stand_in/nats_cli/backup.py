"""A stream as a backup in a folder and back, by the requests of ``nats stream backup`` and ``nats stream restore``.

Source: snapshots.go of nats-io/jsm.go, whose files these are: ``backup.json`` and ``stream.tar.s2``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

CHUNK_BYTES = 128 * 1024
SENT_BYTES = 64 * 1024
MOST_S = 30.0


class Received(NamedTuple):
    """What came of a backup."""

    bytes: int
    chunks: int
    uncompressed: int


async def back_up(client: Client, stream: str, folder: Path) -> Received:
    """Write a backup of ``stream``, its consumers included. Raises RuntimeError where the server ends it early."""
    chunks: list[bytes] = []
    ended = asyncio.get_running_loop().create_future()

    async def take(message: Msg) -> None:
        if not message.data:
            status = (message.headers or {}).get("Status", "")
            ended.set_result("" if status in ("", "204") else f"{status} {message.headers}")
            return
        chunks.append(message.data)
        if message.reply:
            await client.publish(message.reply, b"")  # Without it the server stops after some chunks.

    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, cb=take, pending_bytes_limit=-1)
    request = {"deliver_subject": inbox, "no_consumers": False, "chunk_size": CHUNK_BYTES}
    answer = await _ask(client, f"$JS.API.STREAM.SNAPSHOT.{stream}", request)
    async with asyncio.timeout(MOST_S):
        if trouble := await ended:
            raise RuntimeError(trouble)
    await subscription.unsubscribe()
    _write(folder, answer, b"".join(chunks))
    return Received(sum(map(len, chunks)), len(chunks), answer["state"]["bytes"])


def _write(folder: Path, answer: dict[str, Any], data: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "backup.json").write_text(json.dumps({"config": answer["config"], "state": answer["state"]}, indent=2))
    (folder / "stream.tar.s2").write_bytes(data)


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    return json.loads((folder / "backup.json").read_bytes()), (folder / "stream.tar.s2").read_bytes()


async def restore(client: Client, folder: Path) -> None:
    """Make the stream of a backup, which must not be there. Raises RuntimeError where the server refuses it."""
    request, data = _read(folder)
    name = request["config"]["name"]
    subject = (await _ask(client, f"$JS.API.STREAM.RESTORE.{name}", request))["deliver_subject"]
    for start in range(0, len(data), SENT_BYTES):
        answer = await client.request(subject, data[start : start + SENT_BYTES], MOST_S)
        if answer.data:
            raise RuntimeError(f"restore failed: {answer.data!r}")
    _checked(json.loads((await client.request(subject, b"", MOST_S)).data))


async def _ask(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    return _checked(json.loads((await client.request(subject, json.dumps(body).encode(), MOST_S)).data))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise RuntimeError(str(answer["error"]))
    return answer
