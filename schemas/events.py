"""What is said on the bus: one frozen struct for each event type.

Every struct is tagged ``<name>.v<version>``. Evolution is additive: a new field has a default, a field
is never removed or retyped (``headrace schemas check`` refuses that); a breaking change is a new version.
Small events travel as JSON; ``Rollout`` and ``Dead`` as MessagePack, because they carry packed bytes.

Shape legend: T tokens of a sequence, S sampled tokens of it (S <= T), M members of a group.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

Role = Literal["dispatcher", "generator", "trainer", "sink", "supervisor"]
LeftOutReason = Literal["stale", "error", "no_signal", "too_long", "duplicate"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events."""

    run: Name
    """Name of the run."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of an environment: a pure function of the run's seed and an index."""

    prompt: str
    """Text that the first turn begins with."""
    answer: str = ""
    """What the environment compares with; empty where it needs none."""
    data: dict[str, Any] = {}
    """Whatever else the environment needs to play it; JSON values only."""


class GroupTask(Event, frozen=True, kw_only=True, tag="task.v1"):
    """Play this group: ``size`` rollouts of one task."""

    group: Natural
    """Number of the group in the run: 0, 1, 2, ... without a gap."""
    env: Name
    """Name of the environment in the run's configuration."""
    index: Natural
    """Index of the task within the environment."""
    task: Task
    size: Positive
    """How many members the group has."""
    least_version: Natural
    """An engine with older weights than this must wait before it plays the group."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens ``start`` to ``end`` (half open, counted over the S sampled tokens) and their version."""

    version: Natural
    start: Natural
    end: Natural


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One exchange: ``context`` tokens given to the policy, then ``sampled`` tokens of its reply."""

    context: Natural
    """Tokens that the environment added before this reply (the prompt, in the first turn)."""
    sampled: Natural
    """Tokens of the reply, its end token included."""
    cached: Natural
    """Tokens of the whole prefix that the engine took from its prefix cache."""
    finish: Literal["stop", "length"]
    """Whether the reply ended by itself or met its token limit."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rollout cannot be trained."""

    kind: Literal["environment", "timeout", "stale", "engine", "too_long", "redelivered"]
    message: Annotated[str, msgspec.Meta(max_length=4096)]


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rollout's time went."""

    started_at: float
    """Start of play, seconds since the epoch."""
    total_s: float
    """From start of play to its end."""
    sampling_s: float
    """Of which waiting for the engine."""


class Rollout(Event, frozen=True, kw_only=True, tag="rollout.v1"):
    """One member of a group, played to its end: exactly what was sampled, under which weights, and its reward.

    ``tokens`` is one sequence: for each turn its context, then its reply. The loss mask follows from
    ``turns``: reply tokens are trained, context tokens are not. Log-probabilities and spans exist
    for reply tokens only. At most 8.1 bytes a token plus 1 KiB.
    """

    group: Natural
    member: Natural
    """Which of the group's members, from 0."""
    env: Name
    index: Natural
    """Index of the task within the environment."""
    generator: Name
    """Instance that played it."""
    attempt: Positive
    """How many times the group had been delivered when it was played."""
    tokens: bytes
    """int32 little-endian [T]: token ids."""
    logprobs: bytes
    """float32 little-endian [S]: log-probability of each sampled token after temperature."""
    turns: list[Turn]
    spans: list[Span]
    """Cover 0 to S in order, without a gap; versions never decrease."""
    reward: float | None
    """None exactly when ``error`` is set."""
    timings: Timings
    metrics: dict[str, float] = {}
    """Named figures of the environment's outcome."""
    error: Failure | None = None
    swaps_during: Natural = 0
    """How many weight swaps the rollout lived through."""

    def token_ids(self) -> npt.NDArray[np.int32]:
        """int32 [T], a view of the payload."""
        return np.frombuffer(self.tokens, dtype="<i4")

    def logprob_values(self) -> npt.NDArray[np.float32]:
        """float32 [S], a view of the payload."""
        return np.frombuffer(self.logprobs, dtype="<f4")

    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """bool [T]: True where the token was sampled by the policy."""
        lengths = [n for turn in self.turns for n in (turn.context, turn.sampled)]
        sampled = np.tile(np.array([False, True]), len(self.turns))
        return np.repeat(sampled, lengths)

    def token_versions(self) -> npt.NDArray[np.int32]:
        """int32 [S]: the weights version that sampled each token."""
        versions = np.array([span.version for span in self.spans], dtype=np.int32)
        return np.repeat(versions, [span.end - span.start for span in self.spans])

    @property
    def sampled_tokens(self) -> int:
        return len(self.logprobs) // 4

    @property
    def least_version(self) -> int | None:
        """Oldest version that sampled a token; None where no token was sampled."""
        return self.spans[0].version if self.spans else None

    @property
    def greatest_version(self) -> int | None:
        return self.spans[-1].version if self.spans else None


class Term(Event, frozen=True, kw_only=True, tag="term.v1"):
    """A trainer instance begins to write the ledger."""

    instance: Name
    """Name of the trainer: the same name takes over, another is refused while this one is alive."""
    committed: Natural
    """Last committed step that it found."""
    host: str
    pid: Natural


class Closed(Event, frozen=True, kw_only=True, tag="closed.v1"):
    """A group is left out for good. Published at the decision, so that admission is credited at once."""

    group: Natural
    reason: LeftOutReason
    step: Positive
    """The step that was being collected when it was decided."""
    rewards: list[float | None]
    """[M] reward of each member, None where it has none."""
    metrics: dict[str, float] = {}
    """Means over the members of the group's named metrics."""
    env: Name


class TrainedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that a step trained. All lists have one entry for each member, in member order."""

    group: Natural
    env: Name
    sequences: list[Natural]
    """[M] position in ROLLOUTS of the event that counts for the member."""
    rewards: list[float | None]
    """[M] None where the member has no reward."""
    advantages: list[float | None]
    """[M] None where the member was left out."""
    left_out: dict[str, LeftOutReason] = {}
    """Member number to the reason why none of its tokens was trained."""


class Step(Event, frozen=True, kw_only=True, tag="step.v1"):
    """Step ``number`` is committed: weights ``number`` were made from weights ``number - 1``.

    Holds each decision that the step took, so that it can be taken again from the log alone.
    """

    number: Positive
    instance: Name
    groups: list[TrainedGroup]
    """In the order in which they were packed."""
    packing: list[list[list[Natural]]]
    """Micro-batches of rows of positions: into the trained members of ``groups``, in their order."""
    left_out: dict[str, Natural]
    """Members left out since the last step, by reason."""
    left_out_tokens: dict[str, Natural]
    """Sampled tokens left out since the last step, by reason."""
    rollouts_seen: Natural
    """Rollouts that the run had consumed when this step was committed."""
    low_water: Natural
    """Everything in ROLLOUTS up to this sequence is settled."""
    config_digest: Sha256
    """Of the configuration that decides what is trained."""
    weights_before: Sha256
    weights_after: Sha256
    seed: int
    checkpoint: Natural
    """Newest step whose checkpoint was durable at the commit."""
    libraries: dict[str, str]
    threads: Positive
    cpu: dict[str, str]
    """Features and settings that decide the bits of a CPU step."""
    world_size: Positive
    metrics: dict[str, float]
    """loss, grad_norm, reward_mean, staleness_max, staleness_mean, and so on."""
    env_metrics: dict[str, dict[str, float]] = {}
    """Environment to means over members of groups trained or closed since the last step."""


class Weights(Event, frozen=True, kw_only=True, tag="weights.v1"):
    """Weights ``version`` are durable and may be loaded."""

    version: Natural
    sha256: Sha256
    """Of the file's bytes; with the version it is one identity."""
    size_bytes: Natural
    location: str
    """Content-addressed place: ``file:<sha256>`` is a folder of the run's weights store."""
    format: Literal["safetensors"] = "safetensors"
    dtype: Literal["float32", "bfloat16"]
    base: Natural | None = None
    """Version that a delta applies to; None for whole weights."""


class Lifecycle(Event, frozen=True, kw_only=True, tag="lifecycle.v1"):
    """A role instance started, swapped weights, or stopped."""

    role: Role
    id: Name
    state: Literal["started", "ready", "swapped", "stopped"]
    pid: Natural
    host: str
    version: Natural | None = None
    """Weights version after the event."""
    details: dict[str, float] = {}
    """For ``swapped``: pause_s, prefetch_s, load_s, aborted_stale, resubmitted, kept."""
    note: str = ""


class Metric(Event, frozen=True, kw_only=True, tag="metric.v1"):
    """Gauges of a role instance; also its heartbeat."""

    role: Role
    id: Name
    version: Natural | None = None
    gauges: dict[str, float]


class Control(Event, frozen=True, kw_only=True, tag="control.v1"):
    """What a person asked of the run."""

    action: Literal["pause", "resume", "stop", "limit"]
    limit: Positive | None = None
    """For ``limit``: most groups open at once."""
    by: str = ""


class Dead(Event, frozen=True, kw_only=True, tag="dead.v1"):
    """A message that cannot be used, whole, with the reason."""

    stream: Name
    sequence: Natural
    """Its position in ``stream``; 0 where it never got into one."""
    subject: str
    headers: dict[str, str]
    payload: bytes
    reason: str
    by: Name


AnyEvent = GroupTask | Rollout | Term | Closed | Step | Weights | Lifecycle | Metric | Control | Dead
EVENT_TYPES: tuple[type[Event], ...] = (
    GroupTask, Rollout, Term, Closed, Step, Weights, Lifecycle, Metric, Control, Dead,
)  # fmt: skip


def event_name(event: Event | type[Event]) -> str:
    """``rollout`` for a Rollout: the tag without its version."""
    return event_tag(event).partition(".")[0]


def event_tag(event: Event | type[Event]) -> str:
    """``rollout.v1`` for a Rollout."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
