"""Reading what a run recorded in pieces: between two, neither a server nor a turn at the run's store is held."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from bus import Bus, Logged, open_run_files
from consumers.trainer import LedgerView, read_steps
from headrace.config import RunConfig
from headrace.inquiry import Place, ask, ask_meanwhile
from schemas import LEDGER, ROLLOUTS, Rollout, RunError, Step

PIECE_BYTES = 64 * 1024 * 1024
"""Of rollouts in memory at a time, about: a demo's whole log, or some steps of a large run."""
ID = "replay"


class CommittedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step is, and what must be known before it is trained."""

    sequence: int
    """In LEDGER."""
    threads: int
    """Intra-op threads that it was taken with."""
    weights_before: str
    """sha256 of the weights that it began with."""


def model_of(place: Place, config: RunConfig, given: Path | None) -> Path:
    """The directory of the model that the run began with: ``given``, its own, or what its trainer has put into NATS.

    Raises RunError where it is gone, Denied where the role may not read it, WeightsError where it is damaged.
    """
    if given is None and place.url is not None and config.weights.store == "jetstream":
        # What lies at the trainer's path here may be another model.
        ask(place, lambda bus, goes_on: open_run_files(bus).fetch_model(place.folder.model), role="operator", id=ID)
        return place.folder.model
    model = given or Path(config.model.path)
    if not model.is_dir():
        raise RunError(
            f"run {place.run!r} began with the model in {model}, which is not here: give a copy of it with --model DIR"
        )
    return model


def committed_steps(place: Place) -> dict[int, CommittedStep]:
    """Every committed step, by number. Raises LogGap where the ledger is damaged."""

    async def question(bus: Bus, goes_on: bool) -> dict[int, CommittedStep]:
        view, steps = LedgerView(), {}
        async for logged in bus.read(LEDGER):
            view.apply(logged)
            if isinstance(step := logged.event, Step):
                steps[step.number] = CommittedStep(
                    sequence=logged.sequence, threads=step.threads, weights_before=step.weights_before
                )
        return steps

    return ask(place, question, id=ID)


def recorded_steps(
    place: Place, committed: dict[int, CommittedStep], numbers: range
) -> Iterator[tuple[Step, dict[int, Rollout]]]:
    """The steps ``numbers``, each with the rollouts of its groups by sequence in ROLLOUTS."""
    while numbers:
        piece = _read_piece(place, committed[numbers[0]].sequence, len(numbers))
        yield from piece
        numbers = numbers[len(piece) :]


def _read_piece(place: Place, start: int, most: int) -> list[tuple[Step, dict[int, Rollout]]]:
    async def question(bus: Bus, goes_on: bool) -> list[tuple[Step, dict[int, Rollout]]]:
        piece, size = [], 0
        async for step, rollouts in read_steps(bus, start):
            piece.append((step, rollouts))
            size += sum(len(rollout.tokens) + len(rollout.logprobs) for rollout in rollouts.values())
            if len(piece) == most or size >= PIECE_BYTES:
                break
        return piece

    return ask(place, question, id=ID)


def end_of_rollouts(place: Place) -> int:
    """The last sequence of ROLLOUTS. Raises RunError where there is none, or the beginning was purged."""

    async def question(bus: Bus, goes_on: bool) -> int:
        state = await bus.state(ROLLOUTS)
        if state.messages == 0:
            raise RunError(f"run {bus.run!r} has no rollouts: see headrace tail {bus.run}")
        if state.first_sequence > 1:
            raise RunError(
                f'run {bus.run!r} was made with log.keep = "checkpoints", and its rollouts begin at sequence '
                f"{state.first_sequence}: a new run begins with the first; take one whose log was kept whole"
            )
        return state.last_sequence

    return ask(place, question, id=ID)


async def recorded_rollouts(place: Place, last: int) -> AsyncIterator[list[Logged]]:
    """All messages of ROLLOUTS up to sequence ``last``, in order, piece by piece."""
    position = 1
    while position <= last:
        piece = await _read_rollouts(place, position, last)
        yield piece
        position = piece[-1].sequence + 1


async def _read_rollouts(place: Place, start: int, last: int) -> list[Logged]:
    async def question(bus: Bus, goes_on: bool) -> list[Logged]:
        piece, size = [], 0
        async for logged in bus.read(ROLLOUTS, start=start):
            piece.append(logged)
            size += len(logged.payload)
            if logged.sequence >= last or size >= PIECE_BYTES:
                break
        return piece

    return await ask_meanwhile(place, question, id=ID)
