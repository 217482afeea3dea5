"""Advantages of a group: each member's reward against its group's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

STD_FLOOR = 0.01
"""Added to the standard deviation, so that nearly equal rewards do not become large advantages."""


def advantages(rewards_M: Sequence[float], kind: Literal["std", "mean", "loo"]) -> npt.NDArray[np.float32]:
    """Rewards less their group's mean; with ``std`` divided by their sample standard deviation plus 0.01.

    With ``loo`` each less the mean of the others, which is M / (M - 1) times what it is less the mean of all.
    rewards_M: the rewards of all members that have one, at least two. Returns float32 [M]; all zero where they agree.
    Raises ValueError for fewer than two.
    Sources: GRPO, arXiv 2402.03300, equation 21; without the division Dr. GRPO, arXiv 2503.20783; leave-one-out,
    RLOO, arXiv 2402.14740.
    """
    if len(rewards_M) < 2:
        raise ValueError("a baseline needs at least two rewards")
    rewards: npt.NDArray[np.float64] = np.asarray(rewards_M, dtype=np.float64)
    if rewards.max() == rewards.min():  # Their mean need not be the same number: it is rounded.
        return np.zeros(len(rewards), np.float32)
    centred: npt.NDArray[np.float64] = rewards - rewards.mean()
    if kind == "std":
        centred = centred / (rewards.std(ddof=1) + STD_FLOOR)
    elif kind == "loo":
        centred = centred * (len(rewards) / (len(rewards) - 1))
    return centred.astype(np.float32)
