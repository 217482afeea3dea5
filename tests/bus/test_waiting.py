"""Waits end with an answer, a refusal, the connection, or their deadline; and one timer serves them all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus import Unanswered
from bus.answers import Denied
from bus.waiting import Waiting
from schemas import BusError


async def ended(waiting: Waiting, subject: str, timeout_s: float, order: list[float]) -> Any:
    with waiting.for_answer(subject, timeout_s) as answer:
        try:
            return await answer
        finally:
            order.append(timeout_s)


async def test_each_wait_ends_at_its_own_deadline_whatever_the_order_in_which_they_began() -> None:
    waiting, order = Waiting(asyncio.get_running_loop()), []  # type: ignore[var-annotated]
    waits = [asyncio.create_task(ended(waiting, "a", timeout_s, order)) for timeout_s in (0.2, 0.05, 0.3, 0.1)]
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert order == [0.05, 0.1, 0.2, 0.3]
    assert [str(each) for each in results] == [f"no answer within {s:g} s" for s in (0.2, 0.05, 0.3, 0.1)]
    assert all(isinstance(each, Unanswered) for each in results)


async def test_a_wait_without_a_deadline_outlives_those_that_have_one() -> None:
    waiting, order = Waiting(asyncio.get_running_loop()), []  # type: ignore[var-annotated]
    with waiting.for_answer("b") as patient:
        with pytest.raises(Unanswered):
            await ended(waiting, "b", 0.02, order)
        assert not patient.done()


async def test_an_answer_in_time_leaves_nothing_to_end() -> None:
    waiting = Waiting(asyncio.get_running_loop())
    with waiting.for_answer("a", 0.02) as answered:
        answered.set_result("here")
        with pytest.raises(Unanswered):
            await ended(waiting, "b", 0.05, [])
        assert answered.result() == "here"
    assert not waiting._waits


async def test_a_refusal_ends_the_waits_for_its_subject_alone() -> None:
    waiting = Waiting(asyncio.get_running_loop())
    with waiting.for_answer("hr.Demo.step") as refused, waiting.for_answer("hr.demo.closed") as other:
        assert waiting.refuse("hr.demo.step", Denied)
        assert not waiting.refuse("hr.demo", Denied)
        assert str(refused.exception()) == "hr.Demo.step"
        assert not other.done()
        waiting.end(BusError("closed"))
        assert str(other.exception()) == "closed"
