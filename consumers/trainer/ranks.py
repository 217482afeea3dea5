"""Several processes that train as one: rank 0 is the trainer, and the others do what it tells them.

Rank 0 alone reads the log, decides and commits. Whatever of its learner's work takes all ranks it announces as a
command before it begins; the others wait for commands, for as long as rank 0 waits for rollouts. A step's rows are
divided among them. A fault on any rank ends all of them: what was committed before it is committed, and recovery
brings every rank back from the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import HeadraceError

from .checkpoint_folder import CheckpointDamaged, CheckpointUnusable
from .learner import Learner
from .logprob_gap import Dtype
from .micro_batch import MicroBatch, empty_micro_batch

LISTENING = "HEADRACE_LISTENING_FD"
"""Environment variable by which Headrace's own launcher tells rank 0 the descriptor at which its store listens."""


class RankLost(HeadraceError):
    """A rank has ended, or gives no sign of life: the others cannot go on without it."""


class Ranks(Protocol):
    """What connects the processes; the real one is ``titan.Lockstep``."""

    @property
    def size(self) -> int:
        """How many there are, rank 0 included."""
        ...

    def tell(self, command: bytes) -> None:
        """On rank 0: what all do next."""
        ...

    def hear(self) -> bytes:
        """On the others: the next command, waited for as long as rank 0 lives. Raises RankLost where it does not."""
        ...

    def send(self, rank: int, payload: bytes) -> None:
        """On rank 0: give ``rank``, which receives it now, its part."""
        ...

    def receive(self) -> bytes:
        """On the others: the part that rank 0 sends."""
        ...

    def missing(self) -> list[int]:
        """Ranks that give no sign of life now; waits some seconds for one."""
        ...


class Build(msgspec.Struct, frozen=True, tag="build"):
    """Load the model."""


class Train(msgspec.Struct, frozen=True, tag="step"):
    """Receive micro-batches, and take an optimizer step."""


class Export(msgspec.Struct, frozen=True, tag="export"):
    """Give your part of the weights."""


class LoadWeights(msgspec.Struct, frozen=True, tag="load weights"):
    """Take the parameters in ``folder``."""

    folder: str


class SaveCheckpoint(msgspec.Struct, frozen=True, tag="save checkpoint"):
    """Write your part of checkpoint ``step``."""

    step: int


class LoadCheckpoint(msgspec.Struct, frozen=True, tag="load checkpoint"):
    """Go back to checkpoint ``step``."""

    step: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """Leave: there is nothing more to do."""


Command = Build | Train | Export | LoadWeights | SaveCheckpoint | LoadCheckpoint | End


class RankedLearner:
    """Rank 0's learner: what takes all ranks, it does together with them; see ``Learner``."""

    def __init__(self, build: Callable[[], Learner], ranks: Ranks, *, data_parallel: int) -> None:
        """build: makes each rank's own learner. data_parallel: shares of a step's rows, of as many ranks each."""
        self._ranks, self._data_parallel = ranks, data_parallel
        with self._together(Build()):
            self._learner = build()

    @property
    def world_size(self) -> int:
        return self._ranks.size

    @property
    def computes_in(self) -> Dtype:
        return self._learner.computes_in

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        shares = share(micro_batches, self._data_parallel)
        ranks_per_share = self._ranks.size // self._data_parallel
        with self._together(Train()):
            for rank in range(1, self._ranks.size):
                self._ranks.send(rank, encoded(shares[rank // ranks_per_share]))
            return self._learner.step(shares[0])

    def export(self) -> bytes:
        with self._together(Export()):
            return self._learner.export()

    def load_weights(self, folder: Path) -> None:
        with self._together(LoadWeights(str(folder.resolve()))):
            self._learner.load_weights(folder)

    def save_checkpoint(self, step: int) -> None:
        with self._together(SaveCheckpoint(step)):
            self._learner.save_checkpoint(step)

    def begin_checkpoint(self, step: int) -> Callable[[], None]:
        # Nothing is copied: all ranks take part in writing it, before the next step.
        return partial(self.save_checkpoint, step)

    def load_checkpoint(self, step: int) -> None:
        with self._together(LoadCheckpoint(step)):
            self._learner.load_checkpoint(step)

    def checkpoints(self) -> list[int]:
        return self._learner.checkpoints()

    def checkpoint_faults(self) -> dict[int, CheckpointDamaged]:
        return self._learner.checkpoint_faults()

    def set_checkpoint_aside(self, step: int) -> Path:
        return self._learner.set_checkpoint_aside(step)

    @contextlib.contextmanager
    def _together(self, command: Command) -> Iterator[None]:
        """What the block does, the other ranks do as well. Raises RankLost where one of them has ended."""
        with _named(self._ranks, command):
            self._ranks.tell(msgspec.json.encode(command))
            yield


@contextlib.contextmanager
def _named(ranks: Ranks, command: Command) -> Iterator[None]:
    """Raises RankLost, naming them, where the block fails and ranks are missing."""
    try:
        yield
    except RuntimeError as error:  # torch's word for everything, a connection that another rank closed included
        if missing := ranks.missing():
            names = ", ".join(f"rank {rank}" for rank in missing)
            words = msgspec.json.decode(msgspec.json.encode(command))["type"]
            raise RankLost(
                f"{names} ended, or gives no sign of life, before {words!r} was done: all ranks end, and what was "
                "not committed is trained again from the log"
            ) from error
        raise


def follow(build: Callable[[], Learner], ranks: Ranks) -> None:
    """On every rank but 0: do what rank 0 tells, until it says that there is nothing more.

    Whatever is raised here has to end the process, and with it all ranks; RankLost where rank 0 has gone.
    """
    learner: Learner | None = None
    while True:
        match command := msgspec.json.decode(ranks.hear(), type=Command):
            case Build():
                learner = build()
            case End():
                return
            case _:
                assert learner is not None, "rank 0 builds first"
                with _named(ranks, command):
                    _obey(learner, command, ranks)


def _obey(learner: Learner, command: Command, ranks: Ranks) -> None:
    match command:
        case Train():
            learner.step(decoded(ranks.receive()))
        case Export():
            learner.export()
        case LoadWeights(folder):
            learner.load_weights(Path(folder))
        case SaveCheckpoint(step):
            learner.save_checkpoint(step)
        case LoadCheckpoint(step):
            with contextlib.suppress(CheckpointUnusable):  # Every rank finds it so, and rank 0 decides what then.
                learner.load_checkpoint(step)


def share(micro_batches: Sequence[MicroBatch], shares: int) -> list[list[MicroBatch]]:
    """Divide the rows of each micro-batch: every share has as many micro-batches, some of them perhaps empty.

    The rows of a micro-batch are equally long, padding included, and all ranks are at the same micro-batch at any
    time: so dealing out its rows one by one makes nobody wait longer than needed.
    """
    return [[_rows(each, slice(number, None, shares)) for each in micro_batches] for number in range(shares)]


def _rows(micro_batch: MicroBatch, rows: slice) -> MicroBatch:
    arrays = {name: getattr(micro_batch, name)[rows] for name in micro_batch.__struct_fields__}
    return MicroBatch(**arrays) if len(arrays["tokens_RL"]) else empty_micro_batch()


class _Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, int]
    payload: bytes


def encoded(micro_batches: Sequence[MicroBatch]) -> bytes:
    """Micro-batches as MessagePack, about 18 bytes a token."""
    arrays = [{name: getattr(each, name) for name in each.__struct_fields__} for each in micro_batches]
    return msgspec.msgpack.encode(
        [
            {name: _Array(value.dtype.str, value.shape, value.tobytes()) for name, value in each.items()}
            for each in arrays
        ]
    )


def decoded(payload: bytes) -> list[MicroBatch]:
    """What was ``encoded``."""

    def array(packed: _Array) -> npt.NDArray[Any]:
        # Copied, because torch takes no array that must not be written.
        return np.frombuffer(packed.payload, np.dtype(packed.dtype)).reshape(packed.shape).copy()

    batches = msgspec.msgpack.decode(payload, type=list[dict[str, _Array]])
    return [MicroBatch(**{name: array(packed) for name, packed in each.items()}) for each in batches]
