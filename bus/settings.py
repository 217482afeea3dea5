"""Settings of how events and weights travel. Each is a table of the run configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from schemas.settings import Settings

Gib = Annotated[float, msgspec.Meta(gt=0, le=2**20)]
"""A stream's limit. More than a pebibyte is a slip; from 8 EiB on the server cannot read the number of bytes."""


class LogSettings(Settings, frozen=True, kw_only=True):
    """``[log]``: what is kept of the run's log."""

    keep: Literal["all", "checkpoints"] = "all"
    """All of it, or what steps after the oldest kept checkpoint need."""
    max_gib: Gib = 4.0
    """Limit of the ROLLOUTS stream, and of EVALUATIONS, in GiB; publishers wait when it is reached."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Copies of each stream: 3 on a cluster."""
    compression: Literal["none", "s2"] = "none"
    """Whether the server compresses what it stores of the events: docs/performance.md has what it saves and costs."""


class WeightsSettings(Settings, frozen=True, kw_only=True):
    """``[weights]``: how weights go from trainer to generators."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which weights are published and generators compute; bfloat16 is meant for GPUs."""
    store: Literal["file", "jetstream"] = "file"
    """Where they lie in between: in a folder that all see, or in NATS itself, where nothing else is shared."""
    keep: Annotated[int, msgspec.Meta(ge=0)] = 8
    """How many of the newest versions stay in the store, besides those that are evaluated; 0 keeps all."""
    whole_every: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Each so many versions are stored whole; of those between, only what changed since the version before: exact, and
    in bfloat16 a hundredth of the bytes. 1 stores each whole."""
    max_gib: Gib = 8.0
    """Limit of the bucket in NATS in GiB: the model, the versions kept, those that are evaluated, and one more. The
    trainer waits when it is full."""
