"""What is said on the bus: one frozen struct for each event type.

Every struct is tagged ``<name>.v<version>``. Evolution is additive: a new field has a default, a field
is never removed or retyped (``headrace schemas check`` refuses that); a breaking change is a new version.
Small events travel as JSON; ``Rollout``, ``Evaluated`` and ``Dead`` as MessagePack: they carry packed bytes.

Shape legend: T tokens of a sequence, S sampled tokens of it (S <= T), M members of a group.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

Role = Literal["dispatcher", "generator", "trainer", "sink", "supervisor"]
LeftOutReason = Literal["stale", "error", "no_signal", "too_long", "truncated", "duplicate"]


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
    """The problem that all members get."""
    size: Positive
    """How many members the group has."""
    least_version: Natural
    """An engine with older weights than this must wait before it plays the group."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens ``start`` to ``end`` (half open, counted over the S sampled tokens) and their version."""

    version: Natural
    """Of the weights that sampled these tokens."""
    start: Natural
    """First of them."""
    end: Natural
    """One past the last."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One exchange: ``context`` tokens given to the policy, then ``sampled`` tokens of its reply."""

    context: Natural
    """Tokens that the environment added before this reply (the whole prompt, in the first turn of a sequence)."""
    sampled: Natural
    """Tokens of the reply, its end token included."""
    cached: Natural
    """Tokens of the sequence up to this reply that the engine took from its prefix cache."""
    finish: Literal["stop", "length"]
    """Whether the reply ended by itself or met its token limit."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rollout cannot be trained."""

    kind: Literal["environment", "timeout", "stale", "engine", "too_long", "redelivered", "refused"]
    """The boundary that it failed at; ``refused`` where its task, or what came of it, cannot be one of the run."""
    message: Annotated[str, msgspec.Meta(max_length=4096)]
    """For people: what happened."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rollout's time went."""

    started_at: float
    """Start of play, seconds since the epoch."""
    total_s: float
    """From start of play to its end."""
    sampling_s: float
    """Of which waiting for the engine."""


class Played(Event, frozen=True, kw_only=True):
    """What one play of a task leaves: exactly what was sampled, under which weights, and its reward."""

    env: Name
    """Name of the environment in the run's configuration."""
    index: Natural
    """Index of the task within the environment."""
    generator: Name
    """Instance that played it."""
    tokens: bytes
    """int32 little-endian [T]: token ids."""
    logprobs: bytes
    """float32 little-endian [S]: log-probability of each sampled token after temperature."""
    turns: list[Turn]
    """What was said in turn; empty where play failed before the first reply."""
    spans: list[Span]
    """Cover 0 to S in order, without a gap; each has a greater version than the one before it."""
    reward: float | None
    """None exactly when ``error`` is set."""
    timings: Timings
    """Where its time went."""
    metrics: dict[str, float] = {}
    """Named figures of the environment's outcome."""
    error: Failure | None = None
    """Why it has no reward; None where it has one."""
    starts: list[Natural] = []
    """Turns at which a new sequence starts, in order; turn 0, which always does, is not listed."""

    def sequences(self) -> list[range]:
        """Where each training sequence lies in ``tokens``, in order; without a token one that is empty."""
        ends = list(accumulate(turn.context + turn.sampled for turn in self.turns))
        bounds = [0, *(ends[turn - 1] for turn in self.starts), ends[-1] if ends else 0]
        return [range(start, end) for start, end in pairwise(bounds)]

    def token_ids(self) -> npt.NDArray[np.int32]:
        """int32 [T], a view of the payload."""
        return np.frombuffer(self.tokens, dtype="<i4")

    def logprob_values(self) -> npt.NDArray[np.float32]:
        """float32 [S], a view of the payload."""
        return np.frombuffer(self.logprobs, dtype="<f4")

    def replies(self) -> list[slice]:
        """Where the reply of each turn lies in ``tokens``, in order."""
        ends = accumulate(turn.context + turn.sampled for turn in self.turns)
        return [slice(end - turn.sampled, end) for turn, end in zip(self.turns, ends, strict=True)]

    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """Mask [T], bool: True where the token was sampled by the policy."""
        sampled_T = np.zeros(sum(turn.context + turn.sampled for turn in self.turns), np.bool_)
        for reply in self.replies():
            sampled_T[reply] = True
        return sampled_T

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


class Rollout(Played, frozen=True, kw_only=True, tag="rollout.v1"):
    """One member of a group, played to its end: exactly what was sampled, under which weights, and its reward.

    ``tokens`` has for each turn its context, then its reply: one training sequence, or several one after another where
    ``starts`` names turns. The loss mask follows from ``turns``: reply tokens are trained, context tokens are not.
    Log-probabilities and spans exist for reply tokens only. At most 8.1 bytes a token plus 1 KiB, with names of up to
    64 characters and up to 16 turns; a further turn adds up to 40 bytes with its span, an error its message.
    """

    group: Natural
    """Number of its group in the run."""
    member: Natural
    """Which of the group's members, from 0."""
    attempt: Positive
    """How many times the group had been delivered when it was played."""
    swaps_during: Natural = 0
    """How many weight swaps the rollout lived through."""


class Evaluated(Played, frozen=True, kw_only=True, tag="evaluated.v1"):
    """One play of a held-out task by one version of the weights: measured, and never trained.

    Tokens are as in a rollout. All of them were sampled by ``version``: weights are not swapped meanwhile.
    """

    version: Natural
    """The weights that were evaluated."""
    task: Natural
    """Number of the task among the environment's evaluation tasks, from 0; the same task at every version."""
    sample: Natural
    """Which play of that task, from 0."""


class Term(Event, frozen=True, kw_only=True, tag="term.v1"):
    """A trainer instance begins to write the ledger."""

    instance: Name
    """Name of the trainer: the same name takes over, another is refused while this one is alive."""
    committed: Natural
    """Last committed step that it found."""
    host: str
    """Machine that it runs on."""
    pid: Natural
    """Its process id there."""


class Closed(Event, frozen=True, kw_only=True, tag="closed.v1"):
    """A group is left out for good. Published at the decision, so that admission is credited at once."""

    group: Natural
    """Number of the group."""
    reason: LeftOutReason
    """What the group was left out for."""
    step: Positive
    """The step that was being collected when it was decided."""
    rewards: list[float | None]
    """[M] reward of each member, None where it has none."""
    env: Name
    """Its environment."""
    sampled_tokens: Natural
    """Tokens that were sampled for it."""
    metrics: dict[str, float] = {}
    """Named metrics, means over the members with a reward."""


class TrainedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that a step trained. All lists have one entry for each member, in member order."""

    group: Natural
    """Number of the group."""
    env: Name
    """Its environment."""
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
    """1, 2, 3, ... without a gap."""
    instance: Name
    """Name of the trainer that took it."""
    groups: list[TrainedGroup]
    """In the order in which they were packed."""
    packing: list[list[list[Natural]]]
    """Micro-batches of rows of positions: into the training sequences of the trained members of ``groups``, in their
    order. A member has one, or several where its rollout has ``starts``."""
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
    """Digest of weights ``number - 1``."""
    weights_after: Sha256
    """Digest of weights ``number``."""
    seed: int
    """Of the run."""
    checkpoint: Natural
    """Newest step whose checkpoint was durable at the commit."""
    libraries: dict[str, str]
    """Package to version, of those that compute."""
    threads: Positive
    """Intra-op threads of each process."""
    cpu: dict[str, str]
    """Features and settings that decide the bits of a CPU step."""
    device: str = ""
    """What computed it: ``cpu``, or a GPU's name; empty in logs of before this was recorded."""
    world_size: Positive
    """Processes that took it together."""
    metrics: dict[str, float]
    """loss, grad_norm, reward_mean, staleness_max, staleness_mean, and so on."""
    env_metrics: dict[str, dict[str, float]] = {}
    """Environment to means over members of groups trained or closed since the last step."""


class Weights(Event, frozen=True, kw_only=True, tag="weights.v1"):
    """Weights ``version`` are durable and may be loaded."""

    version: Natural
    """0 for what the run starts from, then the step that made them."""
    sha256: Sha256
    """Of the file's bytes; with the version it is one identity."""
    size_bytes: Natural
    """Of the file."""
    location: str
    """Content-addressed place: ``file:<sha256>`` is a folder of the run's weights store, and
    ``jetstream:<bucket>/<sha256>`` an object in NATS."""
    format: Literal["safetensors"] = "safetensors"
    """Of the file."""
    dtype: Literal["float32", "bfloat16"]
    """Of the parameters in it."""
    base: Natural | None = None
    """Version that the stored delta applies to, which makes this file of that one; None where there is no delta."""
    delta_bytes: Natural | None = None
    """Of that delta; None where there is none. Where there is one, the whole file may be stored beside it."""


class Lifecycle(Event, frozen=True, kw_only=True, tag="lifecycle.v1"):
    """A role instance started, swapped weights, or stopped."""

    role: Role
    """What it is."""
    id: Name
    """Which one of its role."""
    state: Literal["started", "ready", "swapped", "stopped"]
    """What happened."""
    pid: Natural
    """Its process id."""
    host: str
    """Machine that it runs on."""
    version: Natural | None = None
    """Weights version after the event."""
    details: dict[str, float] = {}
    """For ``swapped``: prefetch_s, stage_s, pause_s, drain_s, load_s, kept, resubmitted, aborted_stale."""
    note: str = ""
    """Why it stopped, where there is more to say."""


class Metric(Event, frozen=True, kw_only=True, tag="metric.v1"):
    """Gauges of a role instance; also its heartbeat."""

    role: Role
    """What it is."""
    id: Name
    """Which one of its role."""
    version: Natural | None = None
    """Weights version that it has now; None where it has none."""
    gauges: dict[str, float]
    """Name to value, at the time of the event."""
    note: str = ""
    """What holds it up, in words; empty while nothing does."""


WEIGHTS_MISSING = "weights_missing"
"""Gauge of a generator that cannot make weights of this version out of deltas: the trainer puts them whole."""


class Control(Event, frozen=True, kw_only=True, tag="control.v1"):
    """What a person asked of the run."""

    action: Literal["pause", "resume", "stop", "limit"]
    """What is to be done."""
    limit: Positive | None = None
    """For ``limit``: most groups open at once."""
    by: str = ""
    """Who asked."""


class Dead(Event, frozen=True, kw_only=True, tag="dead.v1"):
    """A message that cannot be used, whole, with the reason."""

    stream: Name
    """Where the message was found."""
    sequence: Natural
    """Its position in ``stream``; 0 where it never got into one."""
    subject: str
    """That it was published to."""
    headers: dict[str, str]
    """As they came."""
    payload: bytes
    """As it came."""
    reason: str
    """Why it cannot be used."""
    by: Name
    """``<role>/<id>`` of who refused it."""


AnyEvent = GroupTask | Rollout | Evaluated | Term | Closed | Step | Weights | Lifecycle | Metric | Control | Dead
EVENT_TYPES: tuple[type[Event], ...] = (
    GroupTask, Rollout, Evaluated, Term, Closed, Step, Weights, Lifecycle, Metric, Control, Dead,
)  # fmt: skip


def event_name(event: Event | type[Event]) -> str:
    """``rollout`` for a Rollout: the tag without its version."""
    return event_tag(event).partition(".")[0]


def event_tag(event: Event | type[Event]) -> str:
    """``rollout.v1`` for a Rollout."""
    return _tag(event if isinstance(event, type) else type(event))


@cache
def _tag(kind: type[Event]) -> str:
    tag = kind.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
