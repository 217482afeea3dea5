"""Rank 0's learner and those that follow it: threads in the processes' place, and learners that note what they do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.trainer.checkpoint_folder import CheckpointDamaged
from consumers.trainer.logprob_gap import Dtype
from consumers.trainer.micro_batch import MicroBatch
from consumers.trainer.ranks import RankedLearner, RankLost, decoded, encoded, follow, share


class Threads:
    """See ``Ranks``. One for all: who is not rank 0 has a queue of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.commands: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(size)]
        self.parts: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(size)]
        self.silent: list[int] = []

    def tell(self, command: bytes) -> None:
        for each in self.commands[1:]:
            each.put(command)

    def send(self, rank: int, payload: bytes) -> None:
        self.parts[rank].put(payload)

    def missing(self) -> list[int]:
        return self.silent

    def hear(self) -> bytes:
        raise AssertionError("rank 0 tells")

    def receive(self) -> bytes:
        raise AssertionError("rank 0 sends")


class Follower(Threads):
    """The connection of one of the others."""

    def __init__(self, ranks: Threads, rank: int) -> None:
        self.size, self._ranks, self._rank = ranks.size, ranks, rank

    def hear(self) -> bytes:
        return self._ranks.commands[self._rank].get(timeout=30.0)

    def receive(self) -> bytes:
        return self._ranks.parts[self._rank].get(timeout=30.0)


class Notes:
    """A learner that notes what it is asked to do."""

    world_size = 1
    computes_in: Dtype = "bfloat16"

    def __init__(self) -> None:
        self.notes: list[object] = ["build"]
        self.batches: list[MicroBatch] = []
        self.fault: Exception | None = None

    def _note(self, what: object) -> None:
        self.notes.append(what)
        if self.fault is not None:
            raise self.fault

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        self.batches += micro_batches
        self._note("step")
        return {"loss": 0.5}

    def export(self) -> bytes:
        self._note("export")
        return b"weights"

    def load_weights(self, folder: Path) -> None:
        self._note(folder)

    def save_checkpoint(self, step: int) -> None:
        self._note(("save", step))

    def load_checkpoint(self, step: int) -> None:
        self._note(("load", step))
        if step == 13:
            raise CheckpointDamaged("checkpoint 13 is damaged")

    def checkpoints(self) -> list[int]:
        return [0, 13]

    def checkpoint_faults(self) -> dict[int, CheckpointDamaged]:
        return {13: CheckpointDamaged("checkpoint 13 is damaged")}

    def set_checkpoint_aside(self, step: int) -> Path:
        self._note(("aside", step))
        return Path("aside")


@contextmanager
def following(ranks: Threads) -> Iterator[list[Notes]]:
    """The learners of all ranks but 0, each in a thread; at the end of the block they are told to end."""
    learners = [Notes() for _ in range(ranks.size - 1)]
    threads = [
        threading.Thread(target=follow, args=(lambda each=each: each, Follower(ranks, rank)))  # type: ignore[misc]
        for rank, each in enumerate(learners, start=1)
    ]
    for thread in threads:
        thread.start()
    try:
        yield learners
    finally:
        ranks.tell(b'{"type":"end"}')
        for thread in threads:
            thread.join(timeout=30.0)
    assert not any(thread.is_alive() for thread in threads)


def batch(rows: int, columns: int, first: int = 0) -> MicroBatch:
    tokens_RL = np.arange(first, first + rows * columns, dtype=np.int32).reshape(rows, columns)
    trained_RL = np.tile(np.arange(columns) % 3 == 2, (rows, 1))
    return MicroBatch(
        tokens_RL=tokens_RL,
        positions_RL=np.tile(np.arange(columns, dtype=np.int32), (rows, 1)),
        trained_RL=trained_RL,
        exact_RL=trained_RL,
        advantages_RL=tokens_RL.astype(np.float32) / 3,
        logprobs_RL=-tokens_RL.astype(np.float32) / 7,
    )


def same(one: MicroBatch, other: MicroBatch) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        and getattr(one, name).dtype == getattr(other, name).dtype
        for name in one.__struct_fields__
    )


SIZES = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([8, 16, 24])), min_size=1, max_size=4)


@given(SIZES, st.integers(1, 5))
def test_every_row_is_in_one_share_and_shares_go_in_step(sizes: list[tuple[int, int]], shares: int) -> None:
    batches = [batch(rows, columns, first=1000 * number) for number, (rows, columns) in enumerate(sizes)]
    divided = share(batches, shares)
    assert [len(each) for each in divided] == [len(batches)] * shares
    for number, whole in enumerate(batches):
        parts = [each[number] for each in divided]
        filled = [part for part in parts if part.trained_tokens]
        assert sorted(row.tobytes() for part in filled for row in part.tokens_RL) == sorted(
            row.tobytes() for row in whole.tokens_RL
        )
        assert sum(part.trained_tokens for part in parts) == whole.trained_tokens
        rows = [len(part.tokens_RL) if part.trained_tokens else 0 for part in parts]
        assert max(rows) - min(rows) <= 1, "the work is even"


@given(SIZES)
def test_what_was_encoded_is_decoded(sizes: list[tuple[int, int]]) -> None:
    batches = [batch(rows, columns) for rows, columns in sizes]
    back = decoded(encoded(batches))
    assert all(map(same, batches, back))
    assert all(each.tokens_RL.flags.writeable for each in back)


def test_the_others_do_what_rank_0_does_with_their_share_of_the_rows(tmp_path: Path) -> None:
    ranks, whole = Threads(4), batch(5, 8)
    with following(ranks) as others:
        own = Notes()
        learner = RankedLearner(lambda: own, ranks, data_parallel=2)
        assert learner.computes_in == "bfloat16"
        assert (learner.world_size, learner.step([whole]), learner.export()) == (4, {"loss": 0.5}, b"weights")
        learner.load_weights(tmp_path)
        learner.save_checkpoint(4)
        learner.load_checkpoint(4)
    for each in others:
        assert each.notes == own.notes == ["build", "step", "export", tmp_path, ("save", 4), ("load", 4)]
    first, second = ([rows] for rows in share([whole], 2)[0] + share([whole], 2)[1])
    for each, expected in zip([own, *others], [first, first, second, second], strict=True):
        assert all(map(same, each.batches, expected)), "two ranks have the same share"


def test_a_checkpoint_of_several_ranks_is_written_by_all_when_it_is_called_for() -> None:
    ranks = Threads(2)
    with following(ranks) as (other,):
        own = Notes()
        write = RankedLearner(lambda: own, ranks, data_parallel=2).begin_checkpoint(4)
        assert own.notes == ["build"]
        write()
    assert other.notes == own.notes == ["build", ("save", 4)]


def test_a_checkpoint_that_all_find_damaged_ends_nobody() -> None:
    ranks = Threads(2)
    with following(ranks) as (other,):
        learner = RankedLearner(Notes, ranks, data_parallel=2)
        with pytest.raises(CheckpointDamaged):
            learner.load_checkpoint(13)
        learner.load_checkpoint(0)
    assert other.notes == ["build", ("load", 13), ("load", 0)]


def test_what_concerns_files_is_done_by_rank_0_alone() -> None:
    ranks = Threads(2)
    with following(ranks) as (other,):
        learner = RankedLearner(Notes, ranks, data_parallel=2)
        assert learner.checkpoints() == [0, 13]
        assert list(learner.checkpoint_faults()) == [13]
        assert learner.set_checkpoint_aside(13) == Path("aside")
    assert other.notes == ["build"]


@pytest.mark.parametrize(
    ("act", "told"),
    [(lambda learner: learner.export(), "export"), (lambda learner: learner.step([batch(2, 8)]), "step")],
)
def test_a_rank_that_is_lost_is_named(act: Callable[[RankedLearner], object], told: str) -> None:
    ranks, own = Threads(3), Notes()
    learner = RankedLearner(lambda: own, ranks, data_parallel=3)
    own.fault = RuntimeError("Connection closed by peer")
    ranks.silent = [2]
    with pytest.raises(RankLost, match=f"rank 2 ended, or gives no sign of life, before '{told}' was done") as raised:
        act(learner)
    assert raised.value.__cause__ is own.fault


def test_a_fault_of_its_own_stays_what_it_is() -> None:
    ranks, own = Threads(2), Notes()
    learner = RankedLearner(lambda: own, ranks, data_parallel=2)
    own.fault = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        learner.export()
