"""Layouts, rates and rollouts for tests of plans: small ones, with everything that costs time in them."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.plan import Layout, Prediction, Rates, Rollouts, Simulation, distribution, pair

LAYOUT = Layout(
    generators=2, concurrency=64, group_size=8, groups_per_step=8, bound=2, stale="drop", steps=1_000_000
)  # fmt: skip
RATES = Rates(
    token_s=0.02, request_s=0.0005, train_token_s=1e-4, step_s=0.1, commit_s=0.1, fetch_s=0.1, pause_s=0.1
)  # fmt: skip


def rollouts(tokens: float, p99: float | None = None, wait_s: float = 0.0, wait_p99: float | None = None) -> Rollouts:
    return pair(distribution(tokens, p99), distribution(wait_s, wait_p99))


def layout(**changes: Any) -> Layout:
    return msgspec.structs.replace(LAYOUT, **changes)


def rates(**changes: Any) -> Rates:
    return msgspec.structs.replace(RATES, **changes)


def simulate(layout: Layout, rates: Rates, rollouts: Rollouts, *, steps: int = 40, seed: int = 0) -> Prediction:
    """The first ``steps``."""
    simulation = Simulation(layout, rates, rollouts, seed=seed)
    simulation.run(steps)
    return simulation.prediction
