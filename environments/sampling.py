"""What the policy asks of an inference engine, and what it gets back."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from schemas import Span

Finish = Literal["stop", "length"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that an engine sampled in one go. Shape legend: S sampled tokens."""

    tokens: list[int]
    """S token ids, the end or stop token included where one was sampled."""
    logprobs: list[float]
    """S natural logarithms of the probability each had when it was sampled, after temperature."""
    spans: list[Span]
    """Weights versions of the S tokens: consecutive half-open ranges from 0 that cover all of them."""
    finish: Finish
    """``stop``: the last token is one of the stop ids; ``length``: there was no room for more."""
    cached: int
    """Leading tokens of the request that came from the engine's prefix cache."""


class Sampler(Protocol):
    """One rollout's way to the engine; it knows the rollout's salt and identity."""

    async def sample(self, tokens: list[int], *, max_tokens: int, stop_ids: list[int]) -> Sample:
        """Continue ``tokens`` until one of ``stop_ids`` was sampled, or ``max_tokens`` tokens (at least 1)."""
        ...
