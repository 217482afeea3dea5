"""What every way of moving rollouts offers to the benchmark: a broker, a writer and a reader, each for a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from consumers.trainer.packing import Document

from .rollouts import Sampled, document, pack_documents, step_rollouts

WINDOW_BYTES, WINDOW_MESSAGES = 8_000_000, 64
"""Most that a writer has sent and knows nothing of, and most that a reader asks for at once."""
SILENCE_S = 60.0
Sent = Callable[[int], None]
"""Called with the number of each rollout that the way calls safe: acknowledged, or sent where nothing answers."""


class Missing(Exception):
    """What a way needs is not installed: which way, and how it is installed."""


class Broker(Protocol):
    """The process between writer and reader, if there is one, and where its things lie."""

    place: str
    """What writers and readers are given to find it, or each other."""

    @property
    def pid(self) -> int | None: ...

    def restart(self) -> None:
        """After ``kill -9`` of its process: again, on what it left."""
        ...

    def stop(self) -> None: ...


class Resting:
    """A writer or reader whose connection needs nothing while there is nothing to do."""

    def rest(self) -> None:
        """Called every few seconds meanwhile: time to answer a server that asks whether we live."""


class Writer(Protocol):
    def rest(self) -> None: ...

    def write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        """Returns when all are safe, in the sense of the way."""
        ...


class Reader(Protocol):
    def rest(self) -> None: ...

    def read(self, count: int, length: int) -> None:
        """Take ``count`` rollouts, check what the way checks, and pack them into batches."""
        ...

    def take(self, timeout_s: float) -> int | None:
        """The number of the next rollout; None where none comes in time, -1 for one that cannot be read."""
        ...

    def clear(self) -> None:
        """Forget what was read: each repetition begins with an empty store."""
        ...


class Way(msgspec.Struct, frozen=True):
    name: str
    broker: Callable[[Path], Broker]
    """Starts it in a folder. Raises Missing."""
    writer: Callable[[str], Writer]
    reader: Callable[[str], Reader]
    has_broker: bool = True


class Received(msgspec.Struct, frozen=True):
    """A rollout of a way that is not ours, as arrays again."""

    number: int
    reward: float
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the ways with lists send, without field names, and without what a validation would need besides."""

    number: int
    reward: float
    context: int
    tokens: list[int]
    logprobs: list[float]

    def received(self) -> Received:
        tokens, logprobs = np.array(self.tokens, np.int32), np.array(self.logprobs, np.float32)
        return Received(self.number, self.reward, tokens, logprobs)


class ReaderOfRecords(Resting):
    """A Reader over ``receive``, for ways that are not ours. Nothing is validated, which is to their favour."""

    def receive(self, timeout_s: float) -> Received | None:
        """The next; None where none comes in time. Raises ValueError for one that cannot be read."""
        raise NotImplementedError

    def read(self, count: int, length: int) -> None:
        batch = step_rollouts(length)
        for _ in range(count // batch):
            documents: list[Document] = []
            while len(documents) < batch:
                received = self.receive(SILENCE_S)
                if received is None:
                    raise RuntimeError(f"no rollout came for {SILENCE_S:g} s, after {len(documents)} of {batch}")
                documents.append(document(received.tokens, received.logprobs, 2 * received.reward - 1))
            pack_documents(documents)

    def take(self, timeout_s: float) -> int | None:
        try:
            received = self.receive(timeout_s)
        except ValueError:
            return -1
        return None if received is None else received.number


def window(length: int) -> int:
    """Messages of rollouts of ``length`` tokens that are under way at once."""
    return max(2, min(WINDOW_MESSAGES, WINDOW_BYTES // (8 * length)))
