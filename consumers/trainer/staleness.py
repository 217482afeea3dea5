"""Which tokens are fresh enough to be trained. The trainer alone guarantees the bound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class FutureVersion(ValueError):
    """A token claims weights that do not exist yet."""


def lags(versions_S: npt.NDArray[np.int32], step: int) -> npt.NDArray[np.int32]:
    """Off-policy steps of each token in step ``step``: the weights it updates less those that sampled it.

    versions_S: int32 [S]. Returns int32 [S], all >= 0.
    Raises FutureVersion where a lag would be negative.
    """
    lags_S = np.int32(step - 1) - versions_S
    if lags_S.size and int(lags_S.min()) < 0:
        raise FutureVersion(
            f"a token was sampled by weights {int(versions_S.max())}, but step {step} updates {step - 1}"
        )
    return lags_S


def fresh(versions_S: npt.NDArray[np.int32], *, step: int, bound: int, stale: str) -> npt.NDArray[np.bool_]:
    """Bool [S]: the sampled tokens of one rollout that step ``step`` may train.

    ``stale = "drop"`` takes all of a rollout or nothing; ``"mask"`` takes the tokens within the bound.
    """
    within_S = lags(versions_S, step) <= bound
    if stale == "drop" and not bool(within_S.all()):
        return np.zeros_like(within_S)
    return within_S
