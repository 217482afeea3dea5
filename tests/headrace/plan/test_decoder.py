"""The virtual engine: one pace for all requests, exact over swaps."""

from __future__ import annotations

import pytest

from headrace.plan.clock import Clock
from headrace.plan.decoder import Decoder, Request
from schemas import Span
from tests.headrace.plan.plans import rates


class Engine:
    """A decoder of 1 s a token and 0.5 s more for each request, and when its requests ended."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.decoder = Decoder(self.clock, rates(token_s=1.0, request_s=0.5))
        self.decoder.resume(0)
        self.ended: list[tuple[float, Request]] = []

    def request(self, tokens: float) -> Request:
        return Request(tokens, lambda request: self.ended.append((self.clock.now, request)))


def test_requests_slow_each_other_and_a_lone_one_is_fast() -> None:
    engine = Engine()
    short, long = engine.request(2), engine.request(4)
    engine.decoder.add([long, short])
    engine.clock.run_until(100)
    # Two share the engine for 2 tokens of 2 s each; the other 2 tokens take 1.5 s each.
    assert engine.ended == [(pytest.approx(4.0), short), (pytest.approx(7.0), long)]
    assert engine.decoder.busy_s == pytest.approx(7.0)


def test_a_pause_moves_every_end_and_versions_change_where_it_was() -> None:
    engine = Engine()
    request = engine.request(4)
    engine.decoder.add([request])
    engine.clock.run_until(3.0)
    engine.decoder.pause()
    engine.clock.run_until(8.0)
    engine.decoder.resume(5)
    engine.clock.run_until(100)
    assert engine.ended == [(pytest.approx(11.0), request)]
    assert engine.decoder.spans(request, unit=1.0) == [Span(0, 0, 2), Span(5, 2, 4)]
    assert engine.decoder.oldest_version(request) == 0


def test_a_request_that_comes_in_a_pause_is_of_the_new_version_alone() -> None:
    engine = Engine()
    engine.decoder.pause()
    request = engine.request(2)
    engine.decoder.add([request])
    engine.clock.run_until(5.0)
    engine.decoder.resume(1)
    engine.clock.run_until(100)
    assert engine.ended == [(pytest.approx(8.0), request)]
    assert engine.decoder.spans(request, unit=1.0) == [Span(1, 0, 2)]


def test_a_request_that_is_given_up_ends_for_nobody_and_frees_the_others() -> None:
    engine = Engine()
    late, other = engine.request(1), engine.request(3)
    engine.decoder.add([late, other])
    engine.decoder.pause()
    engine.decoder.give_up(late)
    engine.decoder.resume(1)
    engine.clock.run_until(100)
    assert engine.ended == [(pytest.approx(4.5), other)]


def test_tokens_that_stand_for_many_keep_every_version_that_has_one() -> None:
    engine = Engine()
    request = engine.request(1000)
    engine.decoder.add([request])
    engine.clock.run_until(750.0)
    engine.decoder.pause()
    engine.decoder.resume(1)
    engine.clock.run_until(10_000)
    assert engine.decoder.spans(request, unit=100.0) == [Span(0, 0, 5), Span(1, 5, 10)]
