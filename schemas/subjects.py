"""Where each event is published: ``hr.<run>.<event>[.<more>]``."""

from __future__ import annotations

import re

from .errors import ConfigError, EventInvalid
from .events import (
    Closed,
    Control,
    Dead,
    Event,
    GroupTask,
    Lifecycle,
    Metric,
    Rollout,
    Step,
    Term,
    Weights,
    event_name,
)

PREFIX = "hr"
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can be a subject token and a part of a stream's name.

    Raises ConfigError with the rule: letters, digits, ``_`` and ``-``, at most 64.
    """
    if not _TOKEN.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r} cannot be used in a subject: "
            "use 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit"
        )
    return name


def subject_of(event: Event) -> str:
    """The subject that ``event`` is published to."""
    base = f"{PREFIX}.{event.run}.{event_name(event)}"
    match event:
        case GroupTask() | Rollout():
            return f"{base}.{event.env}"
        case Lifecycle() | Metric():
            return f"{base}.{event.role}.{event.id}"
        case Dead():
            return f"{base}.{event.stream}"
        case Term() | Closed() | Step() | Weights() | Control():
            return base
    raise EventInvalid(f"{type(event).__name__} has no subject")


def subject_filter(run: str, kind: type[Event]) -> str:
    """The subject, with a wildcard where it varies, of all events of ``kind`` in a run."""
    base = f"{PREFIX}.{run}.{event_name(kind)}"
    return base if kind in (Term, Closed, Step, Weights, Control) else f"{base}.>"
