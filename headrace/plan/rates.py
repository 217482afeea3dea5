"""What a plan is computed from: how fast each side works, how long rollouts are, and how a run is laid out."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.config import RunConfig
from schemas import ConfigError

QUANTILES = 4096
"""Rollouts that stand for a distribution that was given by its median and 99th percentile."""
P99 = NormalDist().inv_cdf(0.99)
"""Standard deviations from the median of a normal distribution to its 99th percentile: 2.33."""

Floats = npt.NDArray[np.float64]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How fast generators and trainer work. Times in seconds.

    A decoding step with b requests takes ``token_s + b * request_s`` and gives each of them a token: the first part is
    reading the weights, the second what each request adds.
    """

    token_s: float
    request_s: float
    train_token_s: float
    """Trainer's time for each trained token."""
    step_s: float = 0.0
    """Trainer's time for a step, however many tokens it has."""
    commit_s: float = 0.0
    """From the end of training to the announced weights. The trainer goes on, up to the end of its next step."""
    fetch_s: float = 0.0
    """From the announcement to the begin of the swap; a generator goes on decoding."""
    pause_s: float = 0.0
    """In which a swap keeps an engine from sampling."""
    closed_share: float = 0.0
    """Of complete groups, those that teach nothing and are closed: others must be played in their place."""

    def training_s(self, tokens: float) -> float:
        """Trainer's time from a collected batch to its new weights."""
        return self.step_s + tokens * self.train_token_s


class Rollouts(msgspec.Struct, frozen=True):
    """A sample of rollouts that stands for all; each is as likely as another."""

    tokens: Floats
    """[N] sampled tokens."""
    waits_s: Floats
    """[N] seconds for which the environment waits before it samples."""

    @property
    def mean_tokens(self) -> float:
        return float(self.tokens.mean())


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What of a configuration decides how its parts wait for each other."""

    generators: int
    concurrency: int
    """Rollouts in play at once, for each generator."""
    group_size: int
    groups_per_step: int
    bound: int
    """``policy.max_off_policy_steps``."""
    stale: Literal["drop", "mask"]
    steps: int

    @classmethod
    def of(cls, config: RunConfig, generators: int | None = None) -> Layout:
        """That of a configuration, with another number of generators where one is given."""
        return cls(
            generators=generators or config.generator.count,
            concurrency=config.generator.concurrency,
            group_size=config.trainer.group_size,
            groups_per_step=config.trainer.groups_per_step,
            bound=config.policy.max_off_policy_steps,
            stale=config.policy.stale,
            steps=config.run.steps,
        )

    @property
    def places(self) -> int:
        """Groups that one generator plays at once."""
        return self.concurrency // self.group_size

    @property
    def groups_of_each(self) -> float:
        """Of a step's groups those that one generator plays, without those that are played in another's place."""
        return self.groups_per_step / self.generators

    @property
    def open_groups(self) -> int:
        """Most groups that admission has open."""
        return (self.bound + 1) * self.groups_per_step


def decoding(rate: float, concurrency: int, single_rate: float | None) -> tuple[float, float]:
    """``token_s`` and ``request_s`` of a generator that samples ``rate`` tokens/s with ``concurrency`` requests.

    ``single_rate``: what one request alone gets; without it, requests do not slow each other down.
    Raises ConfigError where the two contradict each other.
    """
    together_s = concurrency / rate
    if single_rate is None or concurrency == 1:
        return together_s, 0.0
    if not rate / concurrency <= single_rate <= rate:
        raise ConfigError(
            f"one request alone cannot have {single_rate:g} tokens/s where {concurrency} together have {rate:g}: give "
            f"--single-rate between {rate / concurrency:g} and {rate:g}"
        )
    request_s = (together_s - 1 / single_rate) / (concurrency - 1)
    return max(0.0, 1 / single_rate - request_s), request_s


def distribution(median: float, p99: float | None, *, most: float = math.inf) -> Floats:
    """[4096] equally likely values of the log-normal distribution with this median and 99th percentile, up to ``most``.

    All alike without ``p99``. Raises ConfigError where it lies below the median, or above one of 0.
    """
    if p99 is None or p99 == median == 0:
        return np.array([min(median, most)])
    if median == 0:
        raise ConfigError(f"a 99th percentile of {p99:g} does not go with a median of 0: give a median above 0")
    if p99 < median:
        raise ConfigError(f"a 99th percentile of {p99:g} lies below the median {median:g}: give a greater one")
    sigma = math.log(p99 / median) / P99
    normal = NormalDist()
    deviations = [normal.inv_cdf((place + 0.5) / QUANTILES) for place in range(QUANTILES)]
    return np.minimum(median * np.exp(sigma * np.array(deviations)), most)


def pair(tokens_A: Floats, waits_B: Floats, seed: int = 0) -> Rollouts:
    """Rollouts whose tokens and waits have nothing to do with each other."""
    count = max(len(tokens_A), len(waits_B))
    waits_N = np.random.default_rng(seed).permutation(np.resize(waits_B, count))
    return Rollouts(np.resize(tokens_A, count), waits_N)
