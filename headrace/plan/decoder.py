"""An engine on the virtual clock: all its requests decode at one pace, which falls with their number.

A decoding step of b requests takes ``token_s + b * request_s``, so between two changes of b each request gains tokens
at the same rate. The engine counts the tokens that a request would have that had been there from the beginning: one
that comes at count c with L tokens to sample ends at count c + L. So nothing needs to be done for each token, nor for
each request when their number changes.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable

from schemas import Span

from .clock import Clock
from .rates import Rates


class Request:
    """One rollout's tokens."""

    def __init__(self, tokens: float, done: Callable[[Request], None]) -> None:
        """``done`` is called when its last token is sampled; not where it was given up."""
        self.tokens = tokens
        self.done = done
        self.begin = 0.0
        """The engine's count when it came."""
        self.given_up = False


class Decoder:
    """Continuous batching of ``Request``s; swaps keep them."""

    def __init__(self, clock: Clock, rates: Rates) -> None:
        self._clock = clock
        self._rates = rates
        self._count, self._counted_at = 0.0, 0.0
        self._ends: list[tuple[float, int, Request]] = []
        self._numbers = itertools.count()
        self._running: dict[Request, None] = {}  # a set that keeps its order, so that a seed decides all
        self._paused = True
        self._schedule = 0
        self._swapped_at: list[float] = []
        """The count at which each version came."""
        self._versions: list[int] = []
        self._busy_s, self._busy_since = 0.0, 0.0

    def add(self, requests: list[Request]) -> None:
        """Begin to sample; while paused they wait."""
        self._pass()
        if requests and not self._running:
            self._busy_since = self._clock.now
        for request in requests:
            request.begin = self._count
            self._running[request] = None
            heapq.heappush(self._ends, (self._count + request.tokens, next(self._numbers), request))
        self._plan()

    def pause(self) -> None:
        """No token is sampled until ``resume``."""
        self._pass()
        self._paused = True
        self._plan()

    def resume(self, version: int) -> None:
        """Go on; tokens are sampled by ``version`` from now on."""
        self._pass()
        self._paused = False
        self._swapped_at.append(self._count)
        self._versions.append(version)
        self._plan()

    def give_up(self, request: Request) -> None:
        """Nothing more is sampled for it."""
        request.given_up = True
        self._leave(request)

    def sampled(self, request: Request) -> float:
        """Tokens that it has; paused only."""
        return self._count - request.begin

    def running(self) -> list[Request]:
        """Requests in flight."""
        return list(self._running)

    def oldest_version(self, request: Request) -> int:
        """Version of its first token, which must have been sampled."""
        return self._versions[bisect.bisect_right(self._swapped_at, request.begin) - 1]

    def spans(self, request: Request, unit: float) -> list[Span]:
        """Versions of a finished request's tokens, of which one stands for ``unit``; at least one."""
        total = max(1, round(request.tokens / unit))
        first = bisect.bisect_right(self._swapped_at, request.begin) - 1
        spans: list[Span] = []
        start = 0
        for place in range(first, len(self._versions)):
            last = place + 1 == len(self._versions)
            end = total if last else min(total, round((self._swapped_at[place + 1] - request.begin) / unit))
            if end > start:
                spans.append(Span(self._versions[place], start, end))
                start = end
            if start == total:
                break
        return spans

    @property
    def busy_s(self) -> float:
        """Seconds so far with at least one request in flight."""
        return self._busy_s + (self._clock.now - self._busy_since if self._running else 0.0)

    @property
    def _pace_s(self) -> float:
        return self._rates.token_s + self._rates.request_s * len(self._running)

    def _pass(self) -> None:
        """Count what was sampled since the last change."""
        if not self._paused and self._running:
            self._count += (self._clock.now - self._counted_at) / self._pace_s
        self._counted_at = self._clock.now

    def _plan(self) -> None:
        """Wake when the next request ends, unless something changes before, and not while paused."""
        self._schedule += 1
        while self._ends and self._ends[0][2].given_up:
            heapq.heappop(self._ends)
        if self._ends and not self._paused:
            left_s = max(0.0, self._ends[0][0] - self._count) * self._pace_s
            schedule = self._schedule
            self._clock.at(self._clock.now + left_s, lambda: self._end(schedule))

    def _end(self, schedule: int) -> None:
        if schedule != self._schedule:
            return
        self._pass()
        end, _, request = heapq.heappop(self._ends)
        self._count = max(self._count, end)  # What is lost in rounding must not make it wake again and again.
        self._leave(request)
        self._plan()
        request.done(request)

    def _leave(self, request: Request) -> None:
        del self._running[request]
        if not self._running:
            self._busy_s += self._clock.now - self._busy_since
