"""Work done in order, in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from consumers.trainer import backlog
from consumers.trainer.backlog import Backlog


class Broken(BaseException):
    """What no one catches by accident."""


def fail() -> None:
    raise Broken


def test_work_is_done_in_order_while_its_owner_goes_on() -> None:
    done: list[int] = []
    gate = threading.Event()

    def first() -> None:
        assert gate.wait(30)
        done.append(0)

    with Backlog("test") as work:
        work.add(first)
        for number in (1, 2, 3):
            work.add(lambda number=number: done.append(number))  # type: ignore[misc]
        assert done == [], "the owner has not waited"
        gate.set()
        work.finish()
        assert done == [0, 1, 2, 3]


def test_a_failure_comes_to_the_owner_and_nothing_after_it_is_done() -> None:
    done: list[int] = []
    with Backlog("test") as work:
        work.add(fail)
        with pytest.raises(Broken):
            work.finish()
        for call in (work.check, work.finish, lambda: work.add(lambda: done.append(1))):
            with pytest.raises(Broken):
                call()
    assert done == []


def test_what_waits_behind_a_failure_is_not_done() -> None:
    done: list[int] = []
    gate = threading.Event()

    def fail_late() -> None:
        assert gate.wait(30)
        raise Broken

    with Backlog("test") as work:
        work.add(fail_late)
        work.add(lambda: done.append(1))
        gate.set()
        with pytest.raises(Broken):
            work.finish()
    assert done == []


def test_work_under_way_is_finished_when_its_owner_ends() -> None:
    done: list[int] = []
    gate = threading.Event()

    def late() -> None:
        assert gate.wait(30)
        done.append(1)

    def end() -> None:
        with Backlog("test") as work:
            work.add(late)
            threading.Timer(0.1, gate.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        end()
    assert done == [1]


def test_patience_with_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "PATIENCE_S", 0.05)
    done: list[int] = []
    gate, left = threading.Event(), threading.Event()

    def endless() -> None:
        assert gate.wait(30)
        left.set()

    with Backlog("test") as work:
        work.add(endless)
        work.add(lambda: done.append(1))
    assert not left.is_set(), "it was left alone"
    gate.set()
    assert left.wait(30)
    work._thread.join(30)
    assert done == [], "and nothing after it is begun"
