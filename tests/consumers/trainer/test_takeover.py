from __future__ import annotations

from typing import Any

import pytest

from bus import Ledger
from consumers.trainer.takeover import check_takeover, refusal
from schemas import LEDGER, TELEMETRY, Fenced, Metric, Term
from tests.examples import lifecycle, term

NOW = 1000.0


def test_the_first_trainer_and_the_same_name_begin_at_once() -> None:
    assert refusal(None, "b", last_sign=None, stopped=False, now=NOW) is None
    assert refusal(term(instance="a"), "a", last_sign=NOW, stopped=False, now=NOW) is None


def test_another_name_is_refused_while_the_last_one_is_alive() -> None:
    reason = refusal(term(instance="a"), "b", last_sign=NOW - 5, stopped=False, now=NOW)
    assert reason is not None
    assert "'a'" in reason
    assert "alive 5 s ago" in reason


def test_another_name_takes_over_from_a_silent_or_ended_one() -> None:
    assert refusal(term(instance="a"), "b", last_sign=NOW - 16, stopped=False, now=NOW) is None
    assert refusal(term(instance="a"), "b", last_sign=NOW - 1, stopped=True, now=NOW) is None
    assert refusal(term(instance="a"), "b", last_sign=None, stopped=False, now=NOW) is None


async def test_signs_of_life_are_read_from_the_log(connect_as: Any) -> None:
    trainer = await connect_as("trainer", id="a")
    begun = await begin_term(trainer, pid=7)
    with pytest.raises(Fenced, match="alive"):
        await check_takeover(trainer, "b", begun + 1)
    await check_takeover(trainer, "b", begun + 16)
    await trainer.publish(Metric(run=trainer.run, role="trainer", id="a", gauges={}))
    heard = await trainer.last(TELEMETRY, Metric, source="trainer/a")
    with pytest.raises(Fenced, match="alive"):
        await check_takeover(trainer, "b", heard.time + 14)
    await check_takeover(trainer, "a", heard.time + 1)
    await trainer.publish(lifecycle(run=trainer.run, role="trainer", id="a", pid=7, host="mill", state="stopped"))
    await check_takeover(trainer, "b", heard.time + 1)


async def test_the_end_of_a_trainer_that_was_taken_over_is_not_that_of_its_successor(connect_as: Any) -> None:
    trainer = await connect_as("trainer", id="a")
    await begin_term(trainer, pid=7)
    begun = await begin_term(trainer, pid=8)
    await trainer.publish(lifecycle(run=trainer.run, role="trainer", id="a", pid=7, host="mill", state="stopped"))
    with pytest.raises(Fenced, match=r"trainer 'a' \(process 8 on mill\) was alive"):
        await check_takeover(trainer, "b", begun + 1)


async def begin_term(bus: Any, *, pid: int) -> float:
    """When the server stored the term of trainer ``a``, in seconds since the epoch."""
    ledger = Ledger(bus, f"writer {pid}")
    await ledger.open()
    await ledger.append(term(run=bus.run, instance="a", pid=pid, host="mill"))
    last = await bus.last(LEDGER, Term)
    return float(last.time)
