"""The streams of a run, as data: one set for each run, so that no run can evict another's messages.

TASKS, ROLLOUTS, LEDGER and EVALUATIONS refuse new messages when they are full (publishers wait and say so) and have no
maximum age: nothing unconsumed can vanish. Consumption is a cursor, never a deletion.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .events import (
    Closed,
    Control,
    Dead,
    Evaluated,
    Event,
    GroupTask,
    Lifecycle,
    Metric,
    Rollout,
    Step,
    Term,
    Weights,
)
from .subjects import subject_filter

MIB = 1024 * 1024
MAX_PAYLOAD_BYTES = 8 * MIB
"""Largest message; NATS advises no more than this."""


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a run."""

    kind: Literal["TASKS", "ROLLOUTS", "LEDGER", "TELEMETRY", "DEAD", "CONTROL", "EVALUATIONS", "WEIGHTS"]
    events: tuple[type[Event], ...]
    discard: Literal["new", "old"]
    max_bytes: int | None
    """Limit of the stream; None where the run's configuration gives it (``log.max_gib``, ``weights.max_gib``)."""
    duplicate_window_s: float
    """How long the server itself remembers message ids; consumers remember for good."""
    echoed: bool = True
    """Whether the server sends the headers of each message that it has stored to whoever listens (``republish``)."""

    def name(self, run: str) -> str:
        return f"{run}_{self.kind}"

    def subjects(self, run: str) -> list[str]:
        return [subject_filter(run, kind) for kind in self.events]


TASKS = StreamSpec(kind="TASKS", events=(GroupTask,), discard="new", max_bytes=1024 * MIB, duplicate_window_s=120)
ROLLOUTS = StreamSpec(
    kind="ROLLOUTS",
    events=(Rollout,),
    discard="new",
    max_bytes=None,
    duplicate_window_s=120,
    # For each echo nats-server 2.15 loads the last message of the same subject, whole.
    echoed=False,
)
LEDGER = StreamSpec(
    kind="LEDGER",
    events=(Term, Closed, Step, Weights),
    discard="new",
    max_bytes=1024 * MIB,
    duplicate_window_s=120,
)
TELEMETRY = StreamSpec(
    kind="TELEMETRY", events=(Lifecycle, Metric), discard="old", max_bytes=256 * MIB, duplicate_window_s=120
)
DEAD = StreamSpec(kind="DEAD", events=(Dead,), discard="new", max_bytes=256 * MIB, duplicate_window_s=120)
CONTROL = StreamSpec(kind="CONTROL", events=(Control,), discard="old", max_bytes=1 * MIB, duplicate_window_s=120)
EVALUATIONS = StreamSpec(kind="EVALUATIONS", events=(Evaluated,), discard="new", max_bytes=None, duplicate_window_s=120)
STREAMS: tuple[StreamSpec, ...] = (TASKS, ROLLOUTS, LEDGER, TELEMETRY, DEAD, CONTROL, EVALUATIONS)


class BucketSpec(StreamSpec, frozen=True, kw_only=True):
    """The stream under an object-store bucket, laid out as all NATS clients do it (ADR-20); it has no events."""

    def bucket(self, run: str) -> str:
        return f"{run}_{self.kind.lower()}"

    def name(self, run: str) -> str:
        return f"OBJ_{self.bucket(run)}"

    def subjects(self, run: str) -> list[str]:
        return [f"$O.{self.bucket(run)}.{part}.>" for part in ("C", "M")]


WEIGHTS_BUCKET = BucketSpec(kind="WEIGHTS", events=(), discard="new", max_bytes=None, duplicate_window_s=120)
"""Only where weights travel through NATS (``weights.store``), so it is not one of STREAMS."""


def stream_for(event: Event | type[Event]) -> StreamSpec:
    """The stream that keeps events of this type."""
    kind = event if isinstance(event, type) else type(event)
    return next(spec for spec in STREAMS if kind in spec.events)
