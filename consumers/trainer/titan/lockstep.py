"""How several ranks go in step: commands, parts of a batch, and word of who has died.

Commands travel through torch's key-value store, on which one can wait for as long as rank 0 waits for rollouts; parts
of a batch through the process group, where all are at the same point anyway. Each rank counts up a heartbeat in the
store. Who finds another silent ends its own process at once, as a kill would: a collective that waits for a dead rank
cannot be broken off otherwise, and a killed trainer is what recovery is made for.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Self

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore, rendezvous  # type: ignore[attr-defined]  # public, by its documentation

from consumers.trainer.ranks import LISTENING, End, RankLost

from .device import ON_CPU

log = logging.getLogger("headrace.trainer")
ENDS = (signal.SIGTERM, signal.SIGINT)
JOIN_S = 300.0
"""Time that all ranks have to come: they start together, and load the same libraries."""
BEAT_S = 0.5
SILENT_S = 30.0
"""Long enough for the pauses of a rank that works."""
MISSING_S = 3.0
"""How long a beat is waited for where there is reason for doubt."""
LEAVE_S = 2.0
"""What a rank may still take to finish once rank 0 has said that it is over."""
STOP_S = 8.0
"""What a rank that is asked to end waits for word of rank 0, which may have a commit to finish."""


class Lockstep:
    """One rank's connection to the others; see ``consumers.trainer.ranks.Ranks``."""

    def __init__(self) -> None:
        """Meet the other ranks, whom torchrun's environment variables count. Raises RankLost where some do not come."""
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        try:
            store = _meet(self.rank, self.size)
            dist.init_process_group(
                "gloo" if ON_CPU else "cuda:nccl,cpu:gloo",
                store=PrefixStore("group", store),
                rank=self.rank,
                world_size=self.size,
            )
        except dist.DistError as error:
            raise RankLost(
                f"not all of {self.size} ranks have come within {JOIN_S:.0f} s ({_first_line(error)}): "
                "look for the one that ended first, or at MASTER_ADDR and MASTER_PORT"
            ) from error
        self._store: Any = PrefixStore("headrace", store)
        self._number = 0
        self._closing = threading.Event()
        signals = _signals() if self.rank > 0 else None  # From now on rank 0 says when it is over.
        self._watch = _Watch(self._another(), self.rank, self.size, self._closing, signals)
        self._watch.start()

    def _another(self) -> Any:
        """The store by another connection: while one of them waits, nobody else can use it."""
        return self._store.clone()

    def tell(self, command: bytes) -> None:
        """On rank 0: what all do next."""
        self._store.set(f"command/{self._number}", command)
        # They were through with the one before the last when we were with the last: all take part in each.
        self._store.delete_key(f"command/{self._number - 2}")
        self._number += 1

    def hear(self) -> bytes:
        """On the others: the next command. Raises RankLost where rank 0 has gone without a word."""
        key = f"command/{self._number}"
        self._number += 1
        while True:
            try:
                self._store.wait([key], timedelta(seconds=BEAT_S))
                return bytes(self._store.get(key))
            except dist.DistStoreError:
                continue  # the time is up; the watch sees to it that this does not go on for ever
            except dist.DistError as error:
                raise RankLost(f"rank 0 has gone without a word ({_first_line(error)})") from error

    def send(self, rank: int, payload: bytes) -> None:
        """On rank 0: give ``rank`` its part."""
        dist.send(torch.tensor(len(payload)), rank)
        dist.send(torch.frombuffer(bytearray(payload), dtype=torch.uint8), rank)

    def receive(self) -> bytes:
        """On the others: the part that rank 0 sends."""
        dist.recv(size := torch.tensor(0), 0)
        dist.recv(payload := torch.empty(int(size), dtype=torch.uint8), 0)
        return payload.numpy().tobytes()

    def missing(self) -> list[int]:
        """Ranks that give no sign of life within MISSING_S."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            store = self._another()
            before = {rank: store.add(f"beat/{rank}", 0) for rank in others}
            time.sleep(MISSING_S)
            return [rank for rank in others if store.add(f"beat/{rank}", 0) == before[rank]]
        except dist.DistError:
            return [0]  # It holds the store.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """On rank 0: tell the others that it is over, and give them some seconds to leave. On them: leave."""
        if self.rank and kind is not None:
            return  # The process ends by it, watched to the end, and all ranks with it.
        try:
            if self.rank == 0:
                self._store.add("over", 1)
                self.tell(msgspec.json.encode(End()))
                self._store.wait([f"left/{rank}" for rank in range(1, self.size)], timedelta(seconds=LEAVE_S + BEAT_S))
            else:
                self._store.set(f"left/{self.rank}", b"")
        except dist.DistError:
            pass  # Who is not there any more need not be told.
        self._closing.set()
        if kind is None:  # Otherwise something may still wait in it for a rank that has gone.
            dist.destroy_process_group()


class _Watch(threading.Thread):
    """Beats, and ends this process where another rank does not, or where it was asked to end and rank 0 is silent."""

    def __init__(
        self, store: Any, rank: int, size: int, closing: threading.Event, signals: socket.socket | None
    ) -> None:
        super().__init__(name="ranks", daemon=True)
        self._store, self._rank, self._closing, self._signals = store, rank, closing, signals
        watched = range(1, size) if rank == 0 else [0]
        self._heard = {each: (0, time.monotonic()) for each in watched}
        """Of each rank: its last count, and when that was new."""
        self._deadline, self._code = float("inf"), 0

    def run(self) -> None:
        looked = time.monotonic()
        while not self._closing.is_set():
            self._rest()
            now = time.monotonic()
            if now - looked > SILENT_S / 2:  # We were stopped ourselves: what we have not heard says nothing.
                self._heard = {rank: (count, now) for rank, (count, _) in self._heard.items()}
            looked = now
            try:
                self._look(now)
            except RuntimeError as error:
                if not self._closing.wait(LEAVE_S):
                    _end(f"rank 0 has gone ({_first_line(error)})")
            if now > self._deadline:
                os._exit(self._code)

    def _rest(self) -> None:
        """For BEAT_S, or until a signal asks this process to end."""
        asked, _, _ = select.select([self._signals] if self._signals else [], [], [], BEAT_S)
        if self._signals is not None and asked:
            number = self._signals.recv(1)[0]
            if self._deadline == float("inf"):
                self._deadline, self._code = time.monotonic() + STOP_S, 128 + number

    def _look(self, now: float) -> None:
        self._store.add(f"beat/{self._rank}", 1)
        if self._rank and self._store.add("over", 0):
            self._deadline = min(self._deadline, now + LEAVE_S)
        for rank, (count, since) in self._heard.items():
            if (new := self._store.add(f"beat/{rank}", 0)) != count:
                self._heard[rank] = new, now
            elif now - since > SILENT_S:
                _end(f"rank {rank} gives no sign of life for {SILENT_S:.0f} s")


def _meet(rank: int, size: int) -> Any:
    """The store of all ranks: at torchrun's address, or where our own launcher has rank 0 listen."""
    timeout = timedelta(seconds=JOIN_S)
    if (listening := os.environ.pop(LISTENING, None)) is None:
        return next(rendezvous("env://", rank, size, timeout=timeout))[0]
    os.set_inheritable(int(listening), False)
    port = int(os.environ["MASTER_PORT"])
    return TCPStore(os.environ["MASTER_ADDR"], port, size, True, timeout, master_listen_fd=int(listening))


def _signals() -> socket.socket:
    """Where the numbers of SIGTERM and SIGINT come from now on, and they do nothing else.

    Python runs a handler in the main thread, which may wait in a collective for ever; this works in any case.
    """
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    signal.set_wakeup_fd(sending.detach())
    for number in ENDS:
        signal.signal(number, lambda number, frame: None)
    return receiving


def _end(words: str) -> None:
    log.error("%s: this rank ends, and what was not committed is trained again from the log", words)
    os._exit(1)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
