"""Redis streams with pickled records, as PipelineRL has them (pipelinerl/streams.py): XADD, and XREAD from the last id.

Better than there: several XADDs in one pipeline, several entries in one XREAD, and the C parser of answers. The server
runs without persistence, as it does there, or with an append-only file, which is what survives its death.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from bus.server import _TETHER

from .rollouts import CONTEXT, Sampled
from .way import Missing, ReaderOfRecords, Received, Record, Resting, Sent, Way, window

STREAM = "rollouts"
MAX_ENTRIES = 1_000_000
READY_S = 20.0
PIPELINES = 4
"""Parts of a window that are sent one after the other, so that the server works while the next is pickled."""
PERSISTENT = ("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
"""As JetStream does: written before it is acknowledged, and synced by the kernel when it likes."""


class RedisServer:
    """A server of our own, which ends with us."""

    def __init__(self, folder: Path, *options: str) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise Missing("redis-server is not installed: apt-get install redis-server")
        try:
            import redis  # noqa: F401
        except ImportError:
            raise Missing("the redis client is not installed: pip install 'headrace[bench]'") from None
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.place = str(probe.getsockname()[1])
        listen = ("--bind", "127.0.0.1", "--port", self.place, "--dir", str(folder), "--save", "")
        tether = [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid())]
        self._command = [*tether, binary, *listen, *options, "--logfile", str(folder / "redis.log")]
        self.restart()

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)
        _connect(self.place).close()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _connect(port: str) -> Any:
    """A client, when the server answers and has read its file."""
    import redis

    client = redis.Redis(port=int(port))
    deadline = time.monotonic() + READY_S
    while True:
        try:
            client.ping()
            return client
        except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def lists_of(sampled: Sampled) -> dict[str, Any]:
    """What PipelineRL's record holds: Python lists."""
    return {"input_ids": sampled.token_list, "logprobs": sampled.logprob_list, "context": CONTEXT} | _facts(sampled)


def arrays_of(sampled: Sampled) -> dict[str, Any]:
    return {"input_ids": sampled.tokens, "logprobs": sampled.logprobs, "context": CONTEXT} | _facts(sampled)


def _facts(sampled: Sampled) -> dict[str, Any]:
    return {"number": sampled.number, "reward": sampled.reward}


class RedisWriter(Resting):
    def __init__(self, record_of: Callable[[Sampled], dict[str, Any]], place: str) -> None:
        self._record_of = record_of
        self._port = place
        self._redis = _connect(place)

    def write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        batch: list[Sampled] = []
        for sampled in rollouts:
            batch.append(sampled)
            if len(batch) * PIPELINES >= window(len(sampled.tokens)):
                self._send(batch, sent)
                batch = []
        if batch:
            self._send(batch, sent)

    def _send(self, batch: list[Sampled], sent: Sent) -> None:
        """Again where the connection is lost: what was stored and not answered is then there twice."""
        import redis

        payloads = [pickle.dumps(self._record_of(sampled), pickle.HIGHEST_PROTOCOL) for sampled in batch]
        while True:
            pipeline = self._redis.pipeline(transaction=False)
            for payload in payloads:
                pipeline.xadd(STREAM, {"data": payload}, maxlen=MAX_ENTRIES, approximate=True)
            try:
                pipeline.execute()
                break
            except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
                self._redis = _connect(self._port)
        for sampled in batch:
            sent(sampled.number)


class RedisReader(ReaderOfRecords):
    def __init__(self, place: str) -> None:
        self._port = place
        self._redis = _connect(place)
        self._last: bytes | str = "0"
        self._buffer: deque[tuple[bytes, dict[bytes, bytes]]] = deque()

    def receive(self, timeout_s: float) -> Received | None:
        if not self._buffer:
            self._fetch(timeout_s)
        if not self._buffer:
            return None
        self._last, entry = self._buffer.popleft()
        record = pickle.loads(entry[b"data"])
        tokens, logprobs = record["input_ids"], record["logprobs"]
        if isinstance(tokens, list):
            return Record(record["number"], record["reward"], record["context"], tokens, logprobs).received()
        return Received(record["number"], record["reward"], tokens, logprobs)

    def _fetch(self, timeout_s: float) -> None:
        import redis

        with contextlib.suppress(redis.exceptions.BusyLoadingError):
            try:
                answer = self._redis.xread({STREAM: self._last}, count=8, block=max(1, int(1000 * timeout_s)))
            except redis.ConnectionError:
                self._redis = _connect(self._port)
                return
            for _, entries in answer:
                self._buffer.extend(entries)

    def clear(self) -> None:
        self._redis.delete(STREAM)


LISTS = Way("Redis streams, pickled lists", RedisServer, partial(RedisWriter, lists_of), RedisReader)
ARRAYS = Way("Redis streams, pickled arrays", RedisServer, partial(RedisWriter, arrays_of), RedisReader)
ARRAYS_IN_FILE = Way(
    "Redis streams, pickled arrays, append-only file",
    lambda folder: RedisServer(folder, *PERSISTENT),
    partial(RedisWriter, arrays_of),
    RedisReader,
)
