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
        self._taken_N = self._steps_until_taken(self._begin_N + self._played_N)
        starts_NM = self._begin_N[:, None] + sample.waits_s
        oldest_NM = self._lags(starts_NM)
        self._lags_PNM = np.stack([self._lags(starts_NM + part * self._sampling_NM) for part in POINTS])
        self._fresh_PNM = self._lags_PNM <= layout.bound
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

    def _lags(self, ages_NM: Floats) -> Floats:
        """Of a token sampled at such an age: it has the version of its group's issue, and of each swap since."""
        swaps_NM = np.floor((ages_NM - self._first_s) / self.step_s + 1e-9)
        lags_NM: Floats = np.maximum(0.0, self._taken_N[:, None] - swaps_NM)
        return lags_NM

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
    def _ready(self) -> Floats:
        """Sorted ages at which each of N places has a group to train."""
        sample = self._sample
        age_N, ready_N = self._begin_N.copy(), np.full(GROUPS, np.inf)
        for tried_N, teaches_N in zip(sample.tries, sample.teaches, strict=True):
            age_N = age_N + self._played_N[tried_N]
            trained_N = teaches_N & ~self._too_late_N[tried_N] & np.isinf(ready_N)
            ready_N[trained_N] = age_N[trained_N]
        # Where none of them could be trained, as many more are played as it takes in the mean.
        left_N = np.isinf(ready_N)
        ready_N[left_N] = age_N[left_N] + float(self._played_N.mean()) * self._played_for_one
        return np.sort(ready_N)

    @property
    def lacking(self) -> float:
        """Left side of (1): open places without a group to train when the trainer has waited, in batches."""
        ages_A = self.wait_s + self.step_s * np.arange(PERIODS)
        return float((1 - np.searchsorted(self._ready, ages_A, side="right") / GROUPS).sum())

    def last_complete_s(self, groups: int) -> float:
        """Mean age at which the last of so many places has a group to train."""
        chances = (np.arange(GROUPS + 1) / GROUPS) ** groups
        return float((self._ready * np.diff(chances)).sum())

    @property
    def _trained(self) -> Floats:
        """Tokens for which each point of a trained rollout stands."""
        weights_PNM: Floats = self._fresh_PNM * self._sample.tokens / len(POINTS)
        return weights_PNM * ~self._too_late_N[:, None]

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
        trained_PNM = self._trained
        return float((self._lags_PNM * trained_PNM).sum() / max(trained_PNM.sum(), 1e-12))

    @property
    def staleness_max(self) -> int:
        lags = self._lags_PNM[self._trained > 0]
        return int(lags.max()) if lags.size else 0

    def idle_share(self) -> float:
        """Share of the time that one generator has no request in flight."""
        some = slice(None, None, 4)
        starts_NM = (self._begin_N[:, None] + self._sample.waits_s)[some]
        ends_NM = starts_NM + self._sampling_NM[some]
        periods = min(PERIODS, math.ceil(float(ends_NM.max()) / self.step_s))
        whole, part = divmod(self._groups, 1.0)
        ages_A = (np.arange(24) + 0.5) / 24 * self.step_s
        empty_A = np.ones_like(ages_A)
        for place, age in enumerate(ages_A):
            for period in range(periods):
                at = age + period * self.step_s
                none = float((~((starts_NM <= at) & (at < ends_NM)).any(1)).mean())
                empty_A[place] *= none**whole * (1 - part + part * none)
        return float(empty_A.mean())
