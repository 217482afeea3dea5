"""What a trainer that is fenced says: what it did not write, and who has taken over."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from bus import Bus, Ledger
from consumers.trainer.fence import in_words
from schemas import Event, Fenced
from tests import examples


async def said(bus: Bus, event: Event) -> str:
    return str(await in_words(bus, event, Fenced("another writer owns the ledger")))


@pytest.fixture
async def taken(connect_as: Any) -> Bus:
    """The ledger of a run that another trainer has taken over."""
    bus: Bus = await connect_as("trainer", id="trainer")
    ledger = Ledger(bus, "other")
    await ledger.open()
    await ledger.append(examples.term(run=bus.run, instance="spare", committed=11, host="mill", pid=77))
    return bus


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (examples.step(number=12), "step 12 could not be committed"),
        (examples.weights(version=12), "weights 12 could not be announced"),
        (examples.closed(group=90, step=12), "group 90 could not be closed for step 12"),
        (examples.term(committed=11), "no term could begin after step 11"),
    ],
)
async def test_the_step_and_the_other_trainer_are_named(event: Event, words: str, taken: Bus) -> None:
    text = await said(taken, event)
    assert text.startswith(f"{words}: trainer 'spare' (process 77 on mill) has taken over this run after step 11. ")
    assert "stop the other and start it again" in text


async def test_another_process_of_the_same_name_is_told_from_us(connect_as: Any) -> None:
    bus = await connect_as("trainer", id="trainer")
    ledger = Ledger(bus, "other")
    await ledger.open()
    await ledger.append(examples.term(run=bus.run, instance="trainer", pid=os.getpid() + 1, host=socket.gethostname()))
    assert f"trainer 'trainer' (process {os.getpid() + 1} on " in await said(bus, examples.step())


async def test_without_another_term_what_the_ledger_knows_is_said(connect_as: Any) -> None:
    bus = await connect_as("trainer", id="trainer")
    assert await said(bus, examples.step(number=2)) == "step 2 could not be committed: another writer owns the ledger"
