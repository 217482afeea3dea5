"""How long an engine takes for a rollout's tokens when a step's groups begin together.

With b requests in the batch a token takes a + b r seconds (``token_s``, ``request_s``). Let v count the tokens that a
request has had, J(x) the mean of min(L, x) over lengths L, and m the requests that begin together, once in a period of
P seconds of decoding. At count v those of i periods ago have had v + i V, so b = m * sum over i of the share of lengths
beyond v + i V, and

    t(v) = a v + r m * sum over i >= 0 of (J(v + i V) - J(i V))        seconds for the first v tokens, v up to V
    P = t(V) = a V + r m E[L], hence V = (P - r m E[L]) / a    tokens that a request gains in a period

A request of L = j V + v tokens takes j whole periods and t(v). Where a generator has fewer places than groups in a
period, its batch is always full instead, and every token takes a + b r with b the requests of full places.
"""

from __future__ import annotations

import numpy as np

from .rates import Floats, Layout, Rates, Rollouts

POINTS = 128
MOST_PERIODS = 64
"""A request that takes more steps than so many is taken to meet no more of others after them."""


class Sharing:
    """One generator's, with ``groups`` groups that begin in each period."""

    def __init__(self, rates: Rates, rollouts: Rollouts, layout: Layout, *, groups: float, period_s: float) -> None:
        self._rates, self._period_s = rates, period_s
        self._sorted_N = np.sort(rollouts.tokens)
        self._sums_N = np.concatenate([[0.0], np.cumsum(self._sorted_N)])
        self._full = groups > layout.places
        self._full_pace_s = self._pace_of_full(rollouts, layout)
        mean = rollouts.mean_tokens
        # One that has a group at all has all of its members.
        self._together, self._later = layout.group_size * max(1.0, groups), layout.group_size * groups
        left_s = period_s - rates.pause_s - rates.request_s * self._later * mean
        self.feasible = left_s > 0
        """Whether there is time for all tokens at any concurrency."""
        self._gained = max(left_s, 0.0) / max(rates.token_s, 1e-12)
        """V: tokens that a request gains in a period."""

    def seconds(self, tokens: Floats) -> Floats:
        """For so many tokens each, from submission; any shape."""
        if self._full:
            return tokens * self._full_pace_s / (1 - self._rates.pause_s / self._period_s)
        if not self.feasible:
            return np.full_like(tokens, np.inf, dtype=np.float64)
        longest = float(self._sorted_N[-1])
        gained = min(self._gained, longest * (1 + 1e-9))
        points_V = np.linspace(0.0, gained, POINTS)
        seconds_V = self._rates.token_s * points_V + self._rates.request_s * self._together * self._mean_up_to(points_V)
        for period in range(1, min(MOST_PERIODS, int(longest / gained) + 1)):
            shift = period * gained
            others_V = self._mean_up_to(points_V + shift) - self._mean_up_to(np.array([shift]))
            seconds_V += self._rates.request_s * self._later * others_V
        if self._gained >= longest:
            return np.interp(tokens, points_V, seconds_V)
        whole = np.floor(tokens / gained)
        return whole * self._period_s + np.interp(tokens - whole * gained, points_V, seconds_V)

    def _mean_up_to(self, limits: Floats) -> Floats:
        """J: mean of min(L, limit)."""
        below = np.searchsorted(self._sorted_N, limits, side="right")
        count = len(self._sorted_N)
        return (self._sums_N[below] + limits * (count - below)) / count

    def _pace_of_full(self, rollouts: Rollouts, layout: Layout) -> float:
        """Seconds of a token while all places are taken: a place holds a group until its last member ends."""
        random = np.random.default_rng(0)
        chosen_NM = random.integers(len(rollouts.tokens), size=(512, layout.group_size))
        tokens_NM, waits_NM = rollouts.tokens[chosen_NM], rollouts.waits_s[chosen_NM]
        rates, most = self._rates, layout.places * layout.group_size
        pace_s = rates.token_s + rates.request_s * most
        for _ in range(50):
            held_s = float((waits_NM + pace_s * tokens_NM).max(1).mean())
            share = pace_s * float(tokens_NM.mean()) / max(held_s, 1e-12)
            wanted_s = rates.token_s + rates.request_s * most * share
            pace_s = (pace_s + wanted_s) / 2
        return pace_s
