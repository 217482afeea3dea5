"""Events for people, in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from bus import Logged
from schemas import (
    Closed,
    Control,
    Dead,
    Evaluated,
    Event,
    GroupTask,
    Lifecycle,
    Metric,
    Played,
    Rollout,
    Step,
    Term,
    Weights,
)


def describe(logged: Logged, *, zone: tzinfo | None = None) -> str:
    """One line: time of day in ``zone`` (local where None), who said it, and what."""
    time = datetime.fromtimestamp(logged.time, UTC).astimezone(zone).strftime("%H:%M:%S.%f")[:-3]
    who = printable(logged.headers.get("ce-source", "").partition("/")[2].partition("/")[2]) or "?"
    if logged.event is None:
        what = f"not an event: {printable(logged.invalid or 'no reason given')} ({printable(logged.subject)})"
    else:
        what = _what(logged.event)
    return f"{time} {who:<20} {what}"


def _what(event: Event) -> str:
    match event:
        case GroupTask():
            return (
                f"task g{event.group} {event.env} index {event.index} size {event.size} "
                f"from v{event.least_version} '{shortened(event.task.prompt)}'"
            )
        case Rollout():
            return f"rollout g{event.group}/{event.member} {_what_played(event)}"
        case Evaluated():
            return f"evaluated v{event.version} task {event.task}/{event.sample} {_what_played(event)}"
        case Term():
            where = f"{printable(event.host)}, process {event.pid}"
            return f"term {printable(event.instance)} after step {event.committed} on {where}"
        case Closed():
            return f"closed g{event.group} {event.env} {event.reason} at step {event.step}{_pairs(event.metrics)}"
        case Step():
            return f"step {event.number} of {len(event.groups)} groups{_pairs(event.metrics)}"
        case Weights():
            delta = "" if event.delta_bytes is None else f", delta of {event.delta_bytes / 1e6:.3f} MB"
            return f"weights v{event.version} {event.dtype} {event.size_bytes / 1e6:.1f} MB{delta} {event.sha256[:12]}"
        case Lifecycle():
            version = "" if event.version is None else f" v{event.version}"
            note = f" {printable(event.note)}" if event.note else ""
            return f"{event.state}{version}, process {event.pid}{_pairs(event.details)}{note}"
        case Metric():
            version = "" if event.version is None else f" v{event.version}"
            return f"metric{version}{_pairs(event.gauges)}"
        case Control():
            limit = "" if event.limit is None else f" {event.limit}"
            return f"control {event.action}{limit}" + (f" by {printable(event.by)}" if event.by else "")
        case Dead():
            place = f"{event.stream} {event.sequence}" if event.sequence else f"{event.stream} (never stored)"
            return f"dead {place} {len(event.payload)} bytes: {printable(event.reason)}"
    raise AssertionError(f"{type(event).__name__} has no words")


def _what_played(played: Played) -> str:
    failure = played.error
    outcome = f"reward {played.reward:.2f}" if failure is None else f"error {failure.kind}"
    by_version = f" {versions(played.spans[0].version, played.spans[-1].version)}" if played.spans else ""
    return f"{played.env} {outcome}{by_version} {len(played.tokens) // 4} tokens by {printable(played.generator)}" + (
        "" if failure is None else f": {shortened(failure.message)}"
    )


def versions(least: int, greatest: int) -> str:
    """``v4``, or ``v4-5``."""
    return f"v{least}" if least == greatest else f"v{least}-{greatest}"


def _pairs(values: dict[str, float]) -> str:
    return "".join(f" {printable(name)} {number(value)}" for name, value in values.items())


def number(value: float) -> str:
    """Four significant digits; whole numbers in full."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def printable(text: str) -> str:
    """``text`` on one line, with what could steer a terminal written out: a model may say anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, width: int = 60) -> str:
    """The beginning of ``printable(text)``, at most ``width`` characters."""
    line = printable(text)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def ranges(numbers: Sequence[int]) -> str:
    """``[31, 32, 33, 40]`` as ``31-33 40``, in their order."""
    found: list[list[int]] = []
    for value in numbers:
        if found and value == found[-1][1] + 1:
            found[-1][1] = value
        else:
            found.append([value, value])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
