"""Settings of a generator: the ``[generator]`` table of the run configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from schemas import Natural, Positive
from schemas.settings import Settings

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class GeneratorSettings(Settings, frozen=True, kw_only=True):
    """``[generator]``: the inference engine, and how groups are played on it."""

    count: Positive = 1
    """Generators that ``headrace up`` starts."""
    engine: str = "vllm"
    """``vllm``, or ``module:Class`` of another engine."""
    concurrency: Positive = 128
    """Rollouts in play at once; no new group is leased while one more would exceed it."""
    max_model_len: Positive = 512
    """Most tokens in one rollout."""
    kv_cache_gib: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Memory of the KV cache on the CPU; size it so that no request is preempted."""
    gpu_memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """Share of the GPU's memory that the engine takes; not used on the CPU."""
    tensor_parallel_size: Positive = 1
    """GPUs over which one copy of the model is split."""
    data_parallel_size: Positive = 1
    """Copies of the model in one engine, each on GPUs of its own; more generators do the same."""
    threads: Positive = 1
    """OpenMP threads of the engine on the CPU."""
    prefix_on_swap: Literal["keep", "refresh"] = "keep"
    """Whether a running rollout keeps its salt, and so its warm prefix, over a swap; or prefills again."""
    play_timeout_s: Seconds = 300.0
    """Most time for one play; a rollout that takes longer fails with kind ``timeout``."""
    retries: Natural = 2
    """Further plays of a member whose environment raised or timed out."""
    max_deliveries: Positive = 8
    """A group delivered more often is answered with error members and a dead letter."""
    lease_s: Seconds = 30.0
    """A lease not renewed for so long ends, and another generator plays the group."""
    metric_interval_s: Annotated[float, msgspec.Meta(gt=0, le=5)] = 2.0
    """How often gauges are published; they are the heartbeat too, and who is not heard for 15 s is taken for dead."""
