from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import pytest

from consumers.trainer import Interrupt, Interrupted


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    interrupt = Interrupt(patience_s=0.05)
    interrupt.install()
    yield interrupt
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_interrupts_at_once_and_is_named(interrupt: Interrupt, number: signal.Signals) -> None:
    with pytest.raises(Interrupted):
        signal.raise_signal(number)
    assert interrupt.number == number


def test_commit_under_way_is_finished_first(interrupt: Interrupt) -> None:
    done = []
    with pytest.raises(Interrupted), interrupt.deferred():  # noqa: PT012 - the order is what is tested
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        done.append("committed")
    assert done
    assert interrupt.number == signal.SIGTERM


def test_commit_that_waits_for_ever_is_broken_off(interrupt: Interrupt) -> None:
    with pytest.raises(Interrupted), interrupt.deferred():  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait()


def test_second_signal_does_not_break_into_the_orderly_end(interrupt: Interrupt) -> None:
    ended = []
    with pytest.raises(Interrupted):  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            ended.append(True)
    assert ended


def test_interrupt_that_a_finalizer_swallowed_is_raised_at_the_next_look(interrupt: Interrupt) -> None:
    interrupt.check()
    with contextlib.suppress(Interrupted):  # As Python does in a finalizer, where it reports exceptions and goes on.
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        interrupt.check()
