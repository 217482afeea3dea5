"""What is predicted of a run, by the closed form and by the simulation alike."""

from __future__ import annotations

import msgspec


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Names are those of the summary that ``headrace up`` ends with."""

    step_s: float
    """From one committed step to the next."""
    trainer_idle_share: float
    """Share of the time that the trainer waits for rollouts."""
    generator_idle_share: float
    """Share of the time that a generator has no request in flight."""
    staleness_mean: float
    """Over trained tokens, in off-policy steps."""
    staleness_max: int
    stale_share: float
    """Of the members of trained groups, those that are left out as stale."""
    tokens_per_s_trained: float
