"""What the generator needs of an inference engine, whichever it is.

The swap of weights is the generator's: it stages them, closes its own gate, then pauses, aborts what must start anew,
loads, labels and resumes. An engine only promises that each of these does exactly what it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from environments import Sample


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of one sequence. Shape legend: P prompt tokens."""

    id: str
    """Unique among unfinished requests; one that was aborted may come again under the same id."""
    tokens: list[int]
    """P token ids, at least one."""
    salt: str
    """Only requests of the same salt share cached prefixes. At most 128 characters, no @, / or backslash."""
    max_tokens: int
    """Most tokens to sample, at least 1; P + max_tokens must fit into ``generator.max_model_len``."""
    temperature: float
    """Logits are divided by it before sampling, and log-probabilities are taken after that."""
    stop_ids: list[int]
    """Sampling ends after one of these; the model's own end tokens don't count."""


class Aborted(Exception):
    """``abort`` took this request: nothing that it sampled may be used."""

    def __init__(self, request: str) -> None:
        super().__init__(request)
        self.request = request


class Engine(Protocol):
    """An inference engine with continuous batching and a prefix cache. All methods belong to one event loop.

    Constructor of every engine: ``(model: Path, settings: GeneratorSettings, policy: PolicySettings, dtype: str,
    seed: int)``. Methods raise EngineError when the engine is dead; then its process must be replaced.
    """

    async def start(self) -> None:
        """Load the model's own weights; returns when requests can be served. Raises EngineError."""
        ...

    async def sample(self, request: SamplingRequest) -> Sample:
        """Sample until a stop id or ``max_tokens``.

        Raises Aborted when ``abort`` took the request, EngineError when the engine died or has no label yet, and
        ValueError for a request that does not fit: that is our own mistake. Cancelling it frees its place.
        """
        ...

    async def pause(self) -> None:
        """Keep requests and their KV; returns when no step is running. Requests may still be submitted: they wait."""
        ...

    def unsampled(self) -> set[str]:
        """Ids of unfinished requests that have no token yet.

        One whose first token is on its way here may be among them: aborting it loses that token and nothing else.
        """
        ...

    async def abort(self, ids: Iterable[str]) -> None:
        """End these requests: their ``sample`` raises Aborted. Unknown and finished ids are passed over."""
        ...

    async def stage(self, folder: Path) -> None:
        """Make the weights of ``folder/model.safetensors`` ready, while requests go on, so that loading them is quick.

        Raises WeightsError when a tensor is missing or has another shape. An engine that has nothing to prepare
        returns at once.
        """
        ...

    async def load(self, folder: Path) -> None:
        """Replace all weights by those of ``folder/model.safetensors``. The engine must be paused.

        Raises WeightsError before the first write when a tensor is missing or has another shape. After an
        EngineError the weights may be half written.
        """
        ...

    async def label(self, version: int) -> None:
        """Tokens sampled from now on belong to this version. The engine must be paused or idle."""
        ...

    async def resume(self) -> None:
        """Go on with everything that is kept or waits."""
        ...

    async def stop(self) -> None:
        """End the engine and all its processes; unfinished requests raise EngineError. May be called twice."""
        ...

    def gauges(self) -> dict[str, float]:
        """How it fares.

        ``running`` and ``waiting``: requests with and without a place in the batch. ``preemptions``: so far.
        ``silent_s``: seconds for which the engine has left a question unanswered; 0 while it answers.
        """
        ...


def check_request(request: SamplingRequest, max_model_len: int) -> None:
    """Raises ValueError when the request can't be served whole."""
    most = len(request.tokens) + request.max_tokens
    if not request.tokens or request.max_tokens < 1 or most > max_model_len:
        raise ValueError(
            f"request {request.id}: {len(request.tokens)} tokens and {request.max_tokens} more to sample: "
            f"both must be at least 1 and fit together into generator.max_model_len {max_model_len}"
        )
