"""Where each event is published: ``hr.<run>.<event>[.<more>]``."""

from __future__ import annotations

import re
from functools import lru_cache

from .errors import ConfigError, EventInvalid
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
    event_name,
)

PREFIX = "hr"
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PART = re.compile(r"[A-Za-z0-9_-]{1,128}")


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
    """The subject that ``event`` is published to.

    Raises EventInvalid where a name in it has a character that a subject cannot carry.
    """
    return _joined(PREFIX, event.run, event_name(event), *_details(event))


@lru_cache(maxsize=1024)
def _joined(*parts: str) -> str:
    for part in parts:
        if not _PART.fullmatch(part):
            raise EventInvalid(f"{part!r} cannot be a part of a subject: use letters, digits, '_' or '-'")
    return ".".join(parts)


def _details(event: Event) -> tuple[str, ...]:
    match event:
        case GroupTask() | Rollout() | Evaluated():
            return (event.env,)
        case Lifecycle() | Metric():
            return (event.role, event.id)
        case Dead():
            return (event.stream,)
        case Term() | Closed() | Step() | Weights() | Control():
            return ()
    raise EventInvalid(f"{type(event).__name__} has no subject")


def subject_filter(run: str, kind: type[Event]) -> str:
    """The subject, with a wildcard where it varies, of all events of ``kind`` in a run."""
    base = f"{PREFIX}.{run}.{event_name(kind)}"
    return base if kind in (Term, Closed, Step, Weights, Control) else f"{base}.>"
