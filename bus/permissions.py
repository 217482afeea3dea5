"""What each role may publish and subscribe to: data for the server's configuration. All else is denied.

A role's answers come to an inbox prefix of its own, so no role can listen to another's.
Only consumers that a role pulls from need the consumer requests; everything else is read with direct gets,
which can neither take a delivery from anyone nor move a cursor. Whoever may make a consumer chooses where the server
delivers to, without the server asking whether that role may publish there: so few may, and on few streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from schemas import (
    CONTROL,
    DEAD,
    EVALUATIONS,
    LEDGER,
    PREFIX,
    ROLLOUTS,
    STREAMS,
    TASKS,
    TELEMETRY,
    WEIGHTS_BUCKET,
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
    StreamSpec,
    Term,
    Weights,
    event_name,
)

BusRole = Literal["dispatcher", "generator", "trainer", "sink", "supervisor", "topology", "operator", "reader", "admin"]
"""Who connects. ``topology`` makes and deletes streams, ``operator`` gives control events and takes backups,
``reader`` only reads, ``supervisor`` makes streams and gives control events, ``admin`` may do anything."""
BUS_ROLES: tuple[BusRole, ...] = get_args(BusRole)

_PUBLISHES: dict[BusRole, tuple[type[Event], ...]] = {
    "dispatcher": (GroupTask, Dead),
    "generator": (Rollout, Evaluated, Dead),
    "trainer": (Term, Closed, Step, Weights, Dead),
    "sink": (Dead,),
    "supervisor": (Control,),
    "operator": (Control,),
}
_TELLS = ("dispatcher", "generator", "trainer", "sink", "supervisor")
_READS: dict[BusRole, tuple[StreamSpec, ...]] = {
    "dispatcher": (TASKS, LEDGER, CONTROL),
    # TELEMETRY: a replay of rollouts waits for a trainer that is alive. EVALUATIONS: what of one is still to be played.
    "generator": (LEDGER, TELEMETRY, CONTROL, EVALUATIONS),
    "trainer": (ROLLOUTS, LEDGER, TELEMETRY, CONTROL),
    "sink": (TASKS, ROLLOUTS, EVALUATIONS, LEDGER, TELEMETRY, DEAD, CONTROL),
    "supervisor": STREAMS,
    "operator": STREAMS,
    "reader": STREAMS,
}
_PULLS: dict[BusRole, tuple[StreamSpec, str]] = {"generator": (TASKS, "generators"), "trainer": (ROLLOUTS, "trainer")}
"""The one durable consumer that a role makes and pulls from."""
_SHAPES: dict[BusRole, tuple[str, ...]] = {
    "topology": ("CREATE", "UPDATE", "DELETE", "RESTORE"),
    "supervisor": ("CREATE", "UPDATE"),
}
_LOOKS = ("operator", "reader")
"""People, who look at a run with Headrace's commands or the nats CLI."""
_READS_WEIGHTS = ("generator", "trainer", "operator")
"""Not ``reader``: reading weights takes a consumer, through which the server could be made to write into the ledger."""


class Permissions(msgspec.Struct, frozen=True):
    """Subjects with wildcards, as the server's configuration takes them."""

    publish: list[str]
    subscribe: list[str]


def inbox_prefix(role: BusRole) -> str:
    """Where answers to a role's requests come."""
    return f"_INBOX.{role}"


def stored_subject(stream: str, subject: str = ">") -> str:
    """Where the server says, with headers alone, that a message is stored in ``stream``."""
    return f"{PREFIX}-stored.{stream}.{subject}"


def permissions(role: BusRole, *runs: str) -> Permissions:
    """What ``role`` may do in ``runs``, or in every run where none is named.

    The server matches whole tokens only, so that a role for every run can read and pull from any stream: name the
    runs where you can.
    """
    if role == "admin":
        return Permissions(publish=[">"], subscribe=[">"])
    publish, subscribe = ["$JS.API.INFO"], [f"{inbox_prefix(role)}.>"]
    for run in runs or ("*",):
        publish += [*_telling(role, run), *_using(role, run), *_shaping(role, run), *_moving_weights(role, run)]
        subscribe += _hearing(role, run)
        if role in _LOOKS:
            publish += _looking(run)
        if role == "operator":
            publish += _operating(run)
    return Permissions(publish=_unique(publish), subscribe=_unique(subscribe))


def _telling(role: BusRole, run: str) -> Iterator[str]:
    for kind in _PUBLISHES.get(role, ()):
        yield f"{PREFIX}.{run}.{event_name(kind)}{_tail(kind)}"
    if role in _TELLS:
        for kind in (Lifecycle, Metric):
            yield f"{PREFIX}.{run}.{event_name(kind)}.{role}.*"


def _tail(kind: type[Event]) -> str:
    return "" if kind in (Term, Closed, Step, Weights, Control) else ".*"


def _using(role: BusRole, run: str) -> Iterator[str]:
    """Requests on the run's streams: their state for all, and what the role reads, pulls and purges."""
    for stream in _streams(run):
        yield f"$JS.API.STREAM.INFO.{stream}"
    for spec in _READS.get(role, ()):
        yield from (f"$JS.API.{request}.GET.{_stream(spec, run)}" for request in ("STREAM.MSG", "DIRECT"))
    if role in _PULLS:
        spec, durable = _PULLS[role]
        stream = _stream(spec, run)
        yield from (f"$JS.API.CONSUMER.{verb}.{stream}.{durable}" for verb in ("CREATE", "INFO", "MSG.NEXT"))
        yield f"$JS.ACK.{stream}.{durable}.>"
    if role == "trainer":
        # It starts from what the ledger says, whatever its consumer remembers.
        yield f"$JS.API.CONSUMER.RESET.{_stream(ROLLOUTS, run)}.trainer"
        # Retention: only it knows what no checkpoint needs any more.
        yield from (f"$JS.API.STREAM.PURGE.{_stream(spec, run)}" for spec in (TASKS, ROLLOUTS))


def _shaping(role: BusRole, run: str) -> Iterator[str]:
    for verb in _SHAPES.get(role, ()):
        for stream in (*_streams(run), _weights_stream(run)):
            yield f"$JS.API.STREAM.{verb}.{stream}"
            if verb == "RESTORE":
                yield f"$JS.SNAPSHOT.RESTORE.{stream}.*"


def _moving_weights(role: BusRole, run: str) -> Iterator[str]:
    """Requests on the bucket of the run's weights. Who reads makes a consumer that nobody shares, and removes it."""
    stream, objects = _weights_stream(run), f"$O.{_bucket(run)}"
    yield f"$JS.API.STREAM.INFO.{stream}"
    if role in (*_READS_WEIGHTS, "reader"):
        yield from (f"$JS.API.{request}.GET.{stream}" for request in ("STREAM.MSG", "DIRECT"))
    if role in _READS_WEIGHTS:
        yield f"$JS.API.CONSUMER.CREATE.{stream}.*.{objects}.C.*"
        yield from (f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in ("MSG.NEXT", "DELETE"))
    if role == "trainer":
        yield from (f"{objects}.{part}.*" for part in ("C", "M"))
        yield f"$JS.API.STREAM.PURGE.{stream}"
        # Who is reading what is about to be purged.
        yield f"$JS.API.CONSUMER.NAMES.{stream}"


def _looking(run: str) -> Iterator[str]:
    """What the nats CLI asks besides, to list and describe streams and consumers."""
    yield from ("$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES")
    for stream in _unique([*_streams(run), _weights_stream(run)]):
        yield f"$JS.API.DIRECT.GET.{stream}.>"
        yield f"$JS.API.CONSUMER.INFO.{stream}.*"
        yield from (f"$JS.API.CONSUMER.{verb}.{stream}" for verb in ("LIST", "NAMES"))


def _operating(run: str) -> Iterator[str]:
    """Backups, and the nats CLI's way to an object: an ordered consumer, which is paced by its reader."""
    yield f"$JS.API.CONSUMER.CREATE.{_weights_stream(run)}.*.$O.{_bucket(run)}.>"
    yield f"$JS.FC.{_weights_stream(run)}.>"
    for stream in _unique([*_streams(run), _weights_stream(run)]):
        yield from (f"$JS.API.STREAM.SNAPSHOT.{stream}", f"$JS.SNAPSHOT.ACK.{stream}.>")


def _hearing(role: BusRole, run: str) -> Iterator[str]:
    yield from (stored_subject(_stream(spec, run)) for spec in _READS.get(role, ()))
    if role in _LOOKS:
        yield f"{PREFIX}.{run}.>"


def _stream(spec: StreamSpec, run: str) -> str:
    return "*" if run == "*" else spec.name(run)


def _streams(run: str) -> list[str]:
    return _unique([_stream(spec, run) for spec in STREAMS])


def _bucket(run: str) -> str:
    return "*" if run == "*" else WEIGHTS_BUCKET.bucket(run)


def _weights_stream(run: str) -> str:
    return "*" if run == "*" else WEIGHTS_BUCKET.name(run)


def _unique(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))
