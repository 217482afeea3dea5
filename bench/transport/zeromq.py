"""ZeroMQ PUB/SUB with MessagePack lists, as prime-rl has it (src/prime_rl/transport/zmq.py): no process in between.

The publisher waits until the subscriber has said that it is there. No high-water mark: PUB would silently drop what
is above it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from .rollouts import CONTEXT, Sampled
from .way import Missing, ReaderOfRecords, Received, Record, Resting, Sent, Way

TOPIC = b"data_rank|0|"
READY_S = 2.0
JOIN_S = 0.2
"""Its subscription comes on another connection than its word, and what is published before it is dropped."""


class NoBroker:
    """Two free ports: for data, and for the subscriber's word that it is ready."""

    pid = None

    def __init__(self, folder: Path) -> None:
        try:
            import zmq  # noqa: F401
        except ImportError:
            raise Missing("pyzmq is not installed: pip install 'headrace[bench]'") from None
        ports = []
        for _ in range(2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ports.append(str(probe.getsockname()[1]))
        self.place = " ".join(ports)

    def restart(self) -> None:
        pass

    def stop(self) -> None:
        pass


def _sockets(place: str, data: str, word: str) -> tuple[Any, Any]:
    """A socket of kind ``data`` for rollouts and one of kind ``word`` for the readiness; the writer's are bound."""
    import zmq

    sockets = []
    for kind, port in zip((data, word), place.split(), strict=True):
        made: Any = zmq.Context.instance().socket(getattr(zmq, kind))
        made.set_hwm(0)
        made.linger = 0
        url = f"tcp://127.0.0.1:{port}"
        made.bind(url) if kind in ("PUB", "PULL") else made.connect(url)
        sockets.append(made)
    return sockets[0], sockets[1]


class Publisher(Resting):
    def __init__(self, place: str) -> None:
        self._data, self._ready = _sockets(place, "PUB", "PULL")
        self._encoder = msgspec.msgpack.Encoder()
        self._heard = False

    def write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        if not self._heard:
            # A subscriber that was there before this publisher has said so to the one before it.
            self._heard = bool(self._ready.poll(int(1000 * READY_S)))
            time.sleep(JOIN_S)
        for sampled in rollouts:
            record = Record(sampled.number, sampled.reward, CONTEXT, sampled.token_list, sampled.logprob_list)
            self._data.send_multipart([TOPIC, self._encoder.encode(record)], copy=False)
            sent(sampled.number)


class Subscriber(ReaderOfRecords):
    def __init__(self, place: str) -> None:
        import zmq

        self._data, self._ready = _sockets(place, "SUB", "PUSH")
        self._data.setsockopt(zmq.SUBSCRIBE, TOPIC)
        self._ready.send(b"0")
        self._decoder = msgspec.msgpack.Decoder(Record)

    def receive(self, timeout_s: float) -> Received | None:
        if not self._data.poll(max(1, int(1000 * timeout_s))):
            return None
        _, payload = self._data.recv_multipart(copy=False)
        return self._decoder.decode(payload.buffer).received()

    def clear(self) -> None:
        """Nothing is kept."""


ZEROMQ = Way("ZeroMQ PUB/SUB, MessagePack lists", NoBroker, Publisher, Subscriber, has_broker=False)
