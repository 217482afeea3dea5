"""What each role may publish and subscribe to: data for the server's configuration.

A role's answers come to an inbox prefix of its own, so no role can listen to another's.
Only consumers that a role pulls from need the consumer requests; everything else is read with direct gets,
which can neither take a delivery from anyone nor move a cursor.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from schemas import (
    DEAD,
    LEDGER,
    PREFIX,
    ROLLOUTS,
    STREAMS,
    TASKS,
    TELEMETRY,
    Closed,
    Control,
    Dead,
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
"""Who connects. ``topology`` creates streams, ``operator`` gives control events, ``reader`` only reads,
``supervisor`` is the first two and says how it fares, ``admin`` may do anything."""
BUS_ROLES: tuple[BusRole, ...] = get_args(BusRole)

_PUBLISHES: dict[BusRole, tuple[type[Event], ...]] = {
    "dispatcher": (GroupTask, Dead),
    "generator": (Rollout, Dead),
    "trainer": (Term, Closed, Step, Weights, Dead),
    "sink": (Dead,),
    "supervisor": (Control,),
    "topology": (),
    "operator": (Control,),
    "reader": (),
}
_PULLS: dict[BusRole, tuple[StreamSpec, ...]] = {
    "generator": (TASKS,),
    "trainer": (ROLLOUTS,),
    "sink": (ROLLOUTS, LEDGER, TELEMETRY, DEAD),
}
_TELLS = ("dispatcher", "generator", "trainer", "sink", "supervisor")


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


def permissions(role: BusRole, run: str = "*") -> Permissions:
    """What ``role`` may do in ``run``, or in every run for ``*``.

    The server matches whole tokens only, so ``*`` lets a role pull from any stream: name the run where you can.
    """
    if role == "admin":
        return Permissions(publish=[">"], subscribe=[">"])
    publish = [f"{PREFIX}.{run}.{event_name(kind)}{_tail(kind)}" for kind in _PUBLISHES[role]]
    if role in _TELLS:
        publish += [f"{PREFIX}.{run}.{event_name(kind)}.{role}.*" for kind in (Lifecycle, Metric)]
    publish += _reading(run)
    for spec in _PULLS.get(role, ()):
        publish += _pulling(_stream(spec, run))
    if role in ("topology", "supervisor"):
        publish += _shaping(run)
    if role == "trainer":
        # Retention: only it knows what no checkpoint needs any more.
        publish += [f"$JS.API.STREAM.PURGE.{_stream(spec, run)}" for spec in (TASKS, ROLLOUTS)]
    subscribe = [f"{inbox_prefix(role)}.>", *_news(run)]
    return Permissions(publish=_unique(publish), subscribe=subscribe)


def _tail(kind: type[Event]) -> str:
    return "" if kind in (Term, Closed, Step, Weights, Control) else ".*"


def _stream(spec: StreamSpec, run: str) -> str:
    return "*" if run == "*" else spec.name(run)


def _streams(run: str) -> list[str]:
    return _unique([_stream(spec, run) for spec in STREAMS])


def _reading(run: str) -> list[str]:
    requests = ("STREAM.INFO.{}", "STREAM.MSG.GET.{}", "DIRECT.GET.{}")
    return ["$JS.API.INFO", *(f"$JS.API.{each.format(stream)}" for stream in _streams(run) for each in requests)]


def _news(run: str) -> list[str]:
    return [stored_subject(stream) for stream in _streams(run)]


def _pulling(stream: str) -> list[str]:
    requests = ("CREATE.{}.*", "INFO.{}.*", "RESET.{}.*", "MSG.NEXT.{}.*")
    return [*(f"$JS.API.CONSUMER.{each.format(stream)}" for each in requests), f"$JS.ACK.{stream}.>"]


def _shaping(run: str) -> list[str]:
    return [f"$JS.API.STREAM.{verb}.{stream}" for stream in _streams(run) for verb in ("CREATE", "UPDATE")]


def _unique(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))
