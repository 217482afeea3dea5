"""The closed form: what a run settles into, from rates and a sample of rollouts, without playing it.

Time is counted from a commit, at which a step's groups are issued anew: admission keeps (k + 1) * G groups open, for
bound k and G groups a step. With S the time from commit to commit, T the trainer's work in it, W = S - T its wait, and
F(t) the share of places in a batch that have a group to train at age t, kG places have none yet when a batch is full,
of all that are open:

    sum over i >= 0 of (1 - F(W + i S)) = k                                          (1)

because places of age W, W + S, W + 2S, ... are open, G of each. S is the least time that meets it, but no less than T,
nor than what all places of all generators need for the groups of a step. With k = 0, W is the mean age at which the
last of G is complete. A group that teaches nothing, or that is complete only when it is too old, is closed, and another
one played in its place. (1) is Little's law; by the same law the mean age of a place at its commit is (k + 1) S.

How long an engine takes for L tokens is Sharing's. All figures are means over a sample of groups that is drawn with a
seed.
"""

from __future__ import annotations

import math

import msgspec

from .prediction import Prediction
from .rates import Layout, Rates, Rollouts
from .settled import Sample, Settled

LAST_OF_MANY = math.exp(-0.5772156649)
"""Of many groups the last is complete, in the mean, when so many are expected not to be: exact for exponential tails
(Gumbel)."""
LONGEST_S = 1e9
ACCURACY = 2e-3
"""Of the time from commit to commit, and of the share that is trained."""
BALANCED = 0.05
"""A trainer that waits no greater share of its time is not kept waiting."""


def predict(layout: Layout, rates: Rates, rollouts: Rollouts, *, seed: int = 0) -> Prediction:
    """What the run settles into. Raises RunError where a generator has no place for one group."""
    state = _settle(layout, rates, rollouts, Sample.draw(layout, rates, rollouts, seed))
    tokens = layout.groups_per_step * layout.group_size * rollouts.mean_tokens * state.trained_share
    return Prediction(
        step_s=state.step_s,
        trainer_idle_share=state.trainer_idle_share,
        generator_idle_share=state.idle_share(),
        staleness_mean=state.staleness_mean,
        staleness_max=state.staleness_max,
        stale_share=state.stale_share,
        tokens_per_s_trained=tokens / state.step_s,
    )


def balance(layout: Layout, rates: Rates, rollouts: Rollouts, *, seed: int = 0) -> int | None:
    """The fewest generators with which the trainer waits at most 5 % of its time; None where no number is enough.

    More of them than groups are open have nothing to play. Raises as ``predict``.
    """
    sample = Sample.draw(layout, rates, rollouts, seed)

    def balanced(generators: int) -> bool:
        tried = msgspec.structs.replace(layout, generators=generators)
        return _settle(tried, rates, rollouts, sample).trainer_idle_share <= BALANCED

    low, high = 0, layout.open_groups
    if not balanced(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if balanced(middle) else (middle, high)
    return high


def _settle(layout: Layout, rates: Rates, rollouts: Rollouts, sample: Sample) -> Settled:
    trained_share = 1.0
    for _ in range(3):  # What is left out as stale takes the trainer no time, which makes less stale, and so on.
        tokens = layout.groups_per_step * layout.group_size * rollouts.mean_tokens * trained_share
        work_s = max(rates.training_s(tokens), rates.commit_s)  # A commit goes on beside the next step.
        state = _settled(layout, rates, rollouts, sample, work_s)
        if abs(state.trained_share - trained_share) < ACCURACY:
            break
        trained_share = state.trained_share
    return state


def _settled(layout: Layout, rates: Rates, rollouts: Rollouts, sample: Sample, work_s: float) -> Settled:
    """The state of the least time from commit to commit that is enough: all that takes time falls with it."""

    def enough(step_s: float) -> Settled | None:
        state = Settled(layout, rates, rollouts, sample, step_s=step_s, work_s=work_s)
        return state if state.feasible and _full_in_time(state, layout) else None

    low = max(work_s, 1e-9)
    if (found := enough(low)) is not None:
        return found
    high = max(2 * low, rollouts.mean_tokens * rates.token_s)
    while (found := enough(high)) is None and high < LONGEST_S:
        low, high = high, 2 * high
    assert found is not None, "no time is long enough"
    while high > (1 + ACCURACY) * low:
        middle = math.sqrt(low * high)
        if (state := enough(middle)) is None:
            low = middle
        else:
            high, found = middle, state
    return found


def _full_in_time(state: Settled, layout: Layout) -> bool:
    """Whether a batch is full when the trainer has waited as long as it does."""
    if layout.bound == 0:
        return state.last_complete_s(layout.groups_per_step) <= state.wait_s
    return state.lacking <= layout.bound + LAST_OF_MANY / layout.groups_per_step
