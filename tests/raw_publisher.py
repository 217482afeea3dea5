"""A publisher that sends any bytes: nats-py alone would not put them into a subject or a header."""

from __future__ import annotations

import asyncio
import json

from bus import Address

INBOX = b"_INBOX.admin.raw"
DEADLINE_S = 10.0


async def publish_raw(address: Address, subject: bytes | str, payload: bytes, headers: bytes = b"") -> int:
    """Store ``payload`` under ``subject``; returns its sequence.

    ``address``: the admin's. ``headers``: lines, each with its CRLF. Raises AssertionError where
    the server does not store it.
    """
    subject = subject.encode() if isinstance(subject, str) else subject
    host, port = address.url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        await reader.readline()
        who = {"user": address.user, "pass": address.password, "headers": True, "verbose": False, "protocol": 1}
        block = b"NATS/1.0\r\n" + headers + b"\r\n"
        writer.write(b"CONNECT " + json.dumps(who).encode() + b"\r\nSUB " + INBOX + b" 1\r\n")
        writer.write(b"HPUB %b %b %d %d\r\n" % (subject, INBOX, len(block), len(block) + len(payload)))
        writer.write(block + payload + b"\r\n")
        await writer.drain()
        async with asyncio.timeout(DEADLINE_S):
            while not (line := await reader.readline()).startswith(b"MSG"):
                assert line, "the server has closed the connection"
                assert not line.startswith(b"-ERR"), line
            answer = json.loads(await reader.readline())
        assert "error" not in answer, answer
        return int(answer["seq"])
    finally:
        writer.close()
