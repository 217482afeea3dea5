"""nats-py's client, mended where what others publish would end it."""

from __future__ import annotations

from typing import Any

import nats.aio.client


class Client(nats.aio.client.Client):
    """Reads on after a subject that is no UTF-8.

    A server lets such subjects through, and nats-py's reading of the connection ends, without a word, at the first.
    """

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        legible = subject.decode("utf-8", "replace").encode()
        return super()._build_message(sid, legible, reply, data, headers)
