"""One state that a run could settle into: its steps take a given time. What then happens to a sample of groups?

Shape legend: N groups of the sample, M members, P points in a rollout, A ages.
"""

from __future__ import annotations

import math
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import RunError

from .rates import Floats, Layout, Rates, Rollouts
from .sharing import Sharing

Flags = npt.NDArray[np.bool_]
GROUPS = 1024
TRIES = 24
"""Groups that are played in one place at most, for one that can be trained."""
PERIODS = 64
"""Of older groups than so many steps none is left."""
POINTS = (1 / 6, 1 / 2, 5 / 6)
"""Of a rollout's tokens these stand for all."""


class Sample(msgspec.Struct, frozen=True):
    """Groups, and which of them are played in one place after the other."""

    tokens: Floats
    """[N, M] that each member samples."""
    waits_s: Floats
    """[N, M] before it samples."""
    turn: Floats
    """[N] where in its step's order of issue each lies, from 0 to 1."""
    tries: npt.NDArray[np.int64]
    """[tries, N] number of the group that is played first in each of N places, second, and so on."""
    teaches: Flags
    """[tries, N] whether it is one that teaches something."""

    @classmethod
    def draw(cls, layout: Layout, rates: Rates, rollouts: Rollouts, seed: int) -> Sample:
        """Raises RunError where a generator has no place for one group."""
        if layout.places < 1:
            raise RunError(
                f"a generator plays {layout.concurrency} rollouts at once, and a group has {layout.group_size}: raise "
                "generator.concurrency"
            )
        random = np.random.default_rng(seed)
        chosen_NM = random.integers(len(rollouts.tokens), size=(GROUPS, layout.group_size))
        turn_N = random.permutation((np.arange(GROUPS) + 0.5) / GROUPS)
        later_TN = random.integers(GROUPS, size=(TRIES - 1, GROUPS))
        return cls(
            rollouts.tokens[chosen_NM],
            rollouts.waits_s[chosen_NM],
            turn_N,
            np.concatenate([np.arange(GROUPS)[None], later_TN]),
            random.random((TRIES, GROUPS)) >= rates.closed_share,
        )


class _Places(msgspec.Struct, frozen=True):
    begins: Floats
    """[tries, N] age at which each place's first group begins, its second, and so on."""
    wanted: Flags
    """[tries, N] whether it is played: there was none to train before it."""
    ready: Floats
    """[N] sorted ages at which each has a group to train."""


class Settled:
    """See ``steady``. Ages in seconds since the commit at which a group was issued."""

    def __init__(
        self, layout: Layout, rates: Rates, rollouts: Rollouts, sample: Sample, *, step_s: float, work_s: float
    ) -> None:
        """``work_s``: of the trainer, in a step of ``step_s``."""
        self._layout, self._rates, self._sample = layout, rates, sample
        self.step_s, self.wait_s = step_s, step_s - work_s
        self._first_s = rates.commit_s + rates.fetch_s + rates.pause_s
        """Age at which generators have the weights that the groups need."""
        played = 1 / (1 - rates.closed_share)
        for _ in range(3):  # How many groups are too late depends on how many are played.
            self._groups = layout.groups_per_step * played / layout.generators
            self._sharing = Sharing(rates, rollouts, layout, groups=self._groups, period_s=step_s)
            if not self._sharing.feasible:
                break
            self._follow()
            before, played = played, self._played_for_one
            if played <= 1.01 * before:
                break

    def _follow(self) -> None:
        """What happens to each group of the sample."""
        layout, sample, step_s = self._layout, self._sample, self.step_s
        sampling_NM = self._sharing.seconds(sample.tokens)
        drops = layout.stale == "drop" and layout.bound > 0
        limit_s = (layout.bound + 1) * step_s if drops else math.inf
        given_up_NM = sampling_NM > limit_s
        self._sampling_NM = np.minimum(sampling_NM, limit_s)
        self._played_N = (sample.waits_s + self._sampling_NM).max(1)
        self._begin_N = self._first_s + self._queued
        oldest_NM, lags_PNM = self._lags(self._begin_N, np.arange(GROUPS))
        self._fresh_PNM = lags_PNM <= layout.bound
        if drops:
            self._fresh_PNM &= (oldest_NM <= layout.bound) & ~given_up_NM
        self._too_late_N: Flags = ~self._fresh_PNM.any((0, 2)) | ((~given_up_NM).sum(1) < 2)

    @property
    def _queued(self) -> Floats:
        """[N] seconds for which each group waits for a place: where all take equally long, places come free in turn."""
        mean = max(float(self._played_N.mean()), 1e-12)
        spread = min(1.0, float(self._played_N.var()) / mean**2)
        turns_N = self._sample.turn * self._layout.groups_of_each / self._layout.places
        queued_N: Floats = np.where(turns_N > 1, turns_N - 1 + (1 - spread) / 2, 0.0) * mean
        return queued_N

    def _steps_until_taken(self, complete_N: Floats) -> Floats:
        """Into how many steps after its issue's each group comes."""
        if self._layout.bound == 0:
            return np.zeros_like(complete_N)
        taken_N: Floats = np.maximum(0.0, np.ceil((complete_N - self.wait_s) / self.step_s - 1e-9))
        # Where the trainer does not wait, complete groups queue: each is taken when its number's turn comes.
        return np.maximum(taken_N, self._layout.bound) if self.wait_s <= 1e-3 * self.step_s else taken_N

    def _lags(self, begin_N: Floats, groups_N: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Of groups that begin at such ages: of their oldest tokens [N, M], and of points in their rollouts [P, N, M].

        A token has the version of its group's issue, and of each swap since.
        """
        taken_N = self._steps_until_taken(begin_N + self._played_N[groups_N])
        starts_NM = begin_N[:, None] + self._sample.waits_s[groups_N]
        ages = [starts_NM, *(starts_NM + part * self._sampling_NM[groups_N] for part in POINTS)]
        swaps = np.floor((np.stack(ages) - self._first_s) / self.step_s + 1e-9)
        lags: Floats = np.maximum(0.0, taken_N[:, None] - swaps)
        return lags[0], lags[1:]

    @property
    def _played_for_one(self) -> float:
        """Groups that are played for one that is trained; at most 1,000."""
        return 1 / max(1e-3, (1 - self._rates.closed_share) * (1 - float(self._too_late_N.mean())))

    @property
    def trainer_idle_share(self) -> float:
        return max(0.0, self.wait_s / self.step_s)

    @property
    def feasible(self) -> bool:
        """Whether engines and places have the time for a step's groups."""
        if not self._sharing.feasible:
            return False
        return self._groups * float(self._played_N.mean()) / self._layout.places <= self.step_s

    @cached_property
    def _places(self) -> _Places:
        """What is played in each of N places until there is a group to train."""
        sample = self._sample
        begins_TN, wanted_TN = np.empty((TRIES, GROUPS)), np.zeros((TRIES, GROUPS), np.bool_)
        age_N, ready_N = self._begin_N.copy(), np.full(GROUPS, np.inf)
        for number, (tried_N, teaches_N) in enumerate(zip(sample.tries, sample.teaches, strict=True)):
            begins_TN[number], wanted_TN[number] = age_N, np.isinf(ready_N)
            age_N = age_N + self._played_N[tried_N]
            trained_N = teaches_N & ~self._too_late_N[tried_N] & wanted_TN[number]
            ready_N[trained_N] = age_N[trained_N]
            age_N = self._judged(age_N)
        # Where none of them could be trained, as many more are played as it takes in the mean.
        left_N = np.isinf(ready_N)
        ready_N[left_N] = age_N[left_N] + float(self._played_N.mean()) * self._played_for_one
        return _Places(begins_TN, wanted_TN, np.sort(ready_N))

    @property
    def lacking(self) -> float:
        """Left side of (1): open places without a group to train when the trainer has waited, in batches."""
        ages_A = self.wait_s + self.step_s * np.arange(PERIODS)
        return float((1 - np.searchsorted(self._places.ready, ages_A, side="right") / GROUPS).sum())

    def _judged(self, complete_N: Floats) -> Floats:
        """Ages at which the trainer finds that groups teach nothing: not while it trains."""
        begun_N = np.floor(complete_N / self.step_s) * self.step_s
        judged_N: Floats = np.where(complete_N - begun_N < self.wait_s, complete_N, begun_N + self.step_s)
        return judged_N

    def last_complete_s(self, groups: int) -> float:
        """Mean age at which the last of so many places has a group to train."""
        chances = (np.arange(GROUPS + 1) / GROUPS) ** groups
        return float((self._places.ready * np.diff(chances)).sum())

    @property
    def _trained(self) -> Floats:
        """Tokens for which each point of a trained rollout stands."""
        weights_PNM: Floats = self._fresh_PNM * self._sample.tokens / len(POINTS)
        return weights_PNM * ~self._too_late_N[:, None]

    @cached_property
    def _trained_lags(self) -> tuple[Floats, Floats]:
        """Lags of the points of those groups that places have to train, and the tokens that each stands for."""
        places = self._places
        found_N = places.wanted.sum(0) - 1
        begin_N = places.begins[found_N, np.arange(GROUPS)]
        groups_N = self._sample.tries[found_N, np.arange(GROUPS)]
        lags_PNM = self._lags(begin_N, groups_N)[1]
        return lags_PNM, (lags_PNM <= self._layout.bound) * self._trained[:, groups_N]

    @property
    def trained_share(self) -> float:
        """Of the tokens of groups that are trained, those that are fresh enough."""
        whole = float(self._sample.tokens[~self._too_late_N].sum())
        mean = float(self._sample.tokens.mean() * self._sample.tokens[~self._too_late_N].size)
        return float(self._trained.sum()) / mean if whole else 1.0

    @property
    def stale_share(self) -> float:
        """Of all rollouts, those of which no token is trained because of its age."""
        return float((~self._fresh_PNM.any(0)).mean())

    @property
    def staleness_mean(self) -> float:
        """Over trained tokens, in off-policy steps."""
        lags_PNM, trained_PNM = self._trained_lags
        return float((lags_PNM * trained_PNM).sum() / max(trained_PNM.sum(), 1e-12))

    @property
    def staleness_max(self) -> int:
        lags_PNM, trained_PNM = self._trained_lags
        lags = lags_PNM[trained_PNM > 0]
        return int(lags.max()) if lags.size else 0

    def idle_share(self) -> float:
        """Share of the time that one generator has no request in flight."""
        sample, places = self._sample, self._places
        some = slice(None, None, 4)
        tried_TN, wanted_TN = sample.tries[:, some], places.wanted[:, some]
        starts_TNM = places.begins[:, some, None] + sample.waits_s[tried_TN]
        ends_TNM = np.where(wanted_TN[..., None], starts_TNM + self._sampling_NM[tried_TN], -np.inf)
        periods = min(PERIODS, math.ceil(float(ends_TNM.max()) / self.step_s))
        whole, part = divmod(self._layout.groups_of_each, 1.0)
        ages_A = (np.arange(24) + 0.5) / 24 * self.step_s
        empty_A = np.ones_like(ages_A)
        for place, age in enumerate(ages_A):
            for period in range(periods):
                at = age + period * self.step_s
                none = float((~((starts_TNM <= at) & (at < ends_TNM)).any((0, 2))).mean())
                empty_A[place] *= none**whole * (1 - part + part * none)
        return float(empty_A.mean())
