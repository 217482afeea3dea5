"""What a trainer makes of LEDGER: a function of its messages, and a fault where one is not a trainer's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus import Bus, EmbeddedServer
from consumers.trainer import LedgerView
from schemas import DEAD, LEDGER, Event, Fenced, LogGap, RunError, Step, encode
from tests.consumers.trainer.trained_run import TrainedRun, events, publish_groups
from tests.examples import SHA256, closed, control, step, term, weights
from tests.logs import logged, unreadable
from tests.raw_publisher import publish_raw

OTHER = SHA256[::-1]
FOREIGN = "message 5 of LEDGER .* was written by no trainer of this run"


def view_of(*told: Event) -> LedgerView:
    view = LedgerView()
    for sequence, event in enumerate(told, start=1):
        view.apply(logged(event, sequence=sequence))
    return view


def one_step() -> LedgerView:
    return view_of(term(committed=0), weights(version=0), closed(group=1), step(number=1))


def test_the_ledger_is_folded_in_order() -> None:
    view = one_step()
    assert (view.committed, view.sequence, view.settled) == (1, 4, {1, 12})
    assert (view.step_sequences, view.low_waters) == ({1: 4}, {1: 39})


def test_a_message_that_cannot_be_read_is_a_fault_and_named() -> None:
    with pytest.raises(RunError, match=f"{FOREIGN}: it is noise.*restore the ledger from a backup, or start a new run"):
        one_step().apply(unreadable(sequence=5, reason="it is noise"))


@pytest.mark.parametrize(("version", "words"), [(0, "weights 0 again"), (2, "weights 2"), (999, "weights 999")])
def test_weights_that_no_step_has_made_are_a_fault(version: int, words: str) -> None:
    with pytest.raises(RunError, match=rf"{FOREIGN}: it announces {words} after step 1"):
        one_step().apply(logged(weights(version=version), sequence=5))


def test_weights_are_announced_once() -> None:
    view = one_step()
    view.apply(logged(weights(version=1), sequence=5))
    with pytest.raises(RunError, match="it announces weights 1 again after step 1"):
        view.apply(logged(weights(version=1, sha256=OTHER), sequence=6))


@pytest.mark.parametrize("number", [1, 3])
def test_steps_follow_one_another(number: int) -> None:
    with pytest.raises(LogGap, match=f"LEDGER has step {number} at sequence 5 after step 1"):
        one_step().apply(logged(step(number=number), sequence=5))


POISON: dict[str, tuple[str, bytes, str]] = {
    "garbage": ("step", b"\x00\xff garbage", "not a known event"),
    "future": ("step", encode(step()).replace(b"step.v1", b"step.v9"), "Invalid value 'step.v9'"),
    "another run's": ("step", encode(step(run="other")), "of run 'other'"),
    "another event": ("closed", encode(control(action="stop", limit=None)), "it is a control.v1"),
    "NaN": ("step", msgspec.json.encode(step()).replace(b"-0.01", b"NaN"), "JSON is malformed"),
    "another dtype": ("weights", encode(weights()).replace(b"float32", b"float16"), "Invalid enum value 'float16'"),
}


@pytest.mark.parametrize(("subject", "payload", "words"), POISON.values(), ids=POISON)
async def test_a_running_trainer_is_fenced_by_what_it_did_not_write_and_none_starts_on_it(
    trained: TrainedRun, server: EmbeddedServer, connect_as: Any, subject: str, payload: bytes, words: str
) -> None:
    """Never trained on, never passed over in silence, never waited for."""
    bus: Bus = await connect_as("generator")
    await publish_groups(bus, [0, 1, 2, 3])
    trainer = trained.trainer(steps=9)

    def poison(version: int) -> None:
        if version == 1:
            act = publish_raw(server.address("admin"), f"hr.{bus.run}.{subject}", payload)
            trained.threads[-1].call(lambda _: act, 30.0)

    with pytest.raises(Fenced, match=r"step 2 could not be committed: another writer owns the ledger: message 5"):
        trainer.run(poison)
    trained.threads[-1].stop()
    with pytest.raises(RunError, match=f"{FOREIGN}: .*{words}"):
        trained.finish(steps=9)
    assert [each.number for each in await events(bus, Step)] == [1]
    assert (await bus.state(LEDGER)).last_sequence == 5
    assert (await bus.state(DEAD)).messages == 0
