"""Who is silent, since when, and what can be known of it from here: for status and progress.

A role is silent when its heartbeat is missing; an engine when its generator says so. While the server itself gives no
answer nobody can be heard, and it alone is named.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bus import LEAST_FREE_BYTES, EmbeddedServer
from schemas import ServerUnreachable

from .folder import RunFolder
from .processes import children, condition
from .view import RoleView, RunView

SERVER = "nats-server"
ENGINE_SILENT_S = "engine_silent_s"
"""A generator's gauge: seconds for which its engine has left a question unanswered; 0 while it answers."""


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """One process that gives no sign of life."""

    who: str
    """``<role>/<id>``, ``<role>/<id> engine``, or ``nats-server``."""
    pid: int | None
    """Its process; null where that is not known."""
    since: float
    """Last sign of it, seconds since the epoch, as far as is known."""
    why: str
    """What is known of it, with the remedy; empty for nothing."""


class ServerSilent(ServerUnreachable):
    """A run's own server is there and gives no answer."""

    def __init__(self, silence: Silence, now: float) -> None:
        super().__init__(words(silence, now))
        self.silence = silence


def words(silence: Silence, now: float) -> str:
    """``trainer/trainer (process 42) is silent since 00:12:33 UTC (17 s): ...``."""
    process = "" if silence.pid is None else f" (process {silence.pid})"
    why = f": {silence.why}" if silence.why else ""
    return f"{silence.who}{process} is silent since {moment(silence.since)} ({now - silence.since:.0f} s){why}"


def moment(at: float) -> str:
    """A time of day, for people."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")


def silences(view: RunView, now: float) -> list[Silence]:
    """The roles that are silent at ``now``, and the engines of those that are not."""
    return [silence for name, role in sorted(view.roles.items()) for silence in _of_role(view, name, role, now)]


def _of_role(view: RunView, name: str, role: RoleView, now: float) -> Iterator[Silence]:
    here = role.host == socket.gethostname()
    if (silent_s := view.silent_for(role, now)) is not None:
        yield Silence(who=name, pid=role.pid or None, since=now - silent_s, why=_why(role.pid) if here else "")
    elif role.state != "stopped" and (engine_s := role.gauges.get(ENGINE_SILENT_S, 0.0)) > view.silent_after_s:
        stopped = [child for child in children(role.pid) if condition(child) == "stopped"] if here else []
        pid = stopped[0] if stopped else None
        yield Silence(who=f"{name} engine", pid=pid, since=role.last_seen - engine_s, why=_why(pid) if pid else "")


def _why(pid: int) -> str:
    match condition(pid):
        case "stopped":
            return f"it was stopped by a signal; kill -CONT {pid} lets it go on"
        case "gone":
            return "its process is gone"
    return ""


def silent_server(folder: RunFolder, now: float, since: float | None = None) -> Silence | None:
    """The run's own server as one that gives no answer; None where there is none, so that nobody should expect any.

    ``since``: last answer, seconds since the epoch; None takes when it last wrote to its store.
    """
    pid = EmbeddedServer.find_pid(folder.nats)
    if pid is None:
        return None
    why = _full_disk(folder.nats) if condition(pid) == "runs" else _why(pid)
    return Silence(who=SERVER, pid=pid, since=since or _written_at(folder.nats, now), why=why)


def server_without_disk(folder: RunFolder, now: float) -> Silence | None:
    """The run's own server where it answers, but can store nothing because its disk is full."""
    server = silent_server(folder, now)
    return server if server and server.why else None


def _full_disk(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    if free >= LEAST_FREE_BYTES:
        return ""
    return f"the disk of {folder} is full ({free} bytes free), nothing can be stored; make room, all others wait"


def _written_at(folder: Path, now: float) -> float:
    """When the newest file of the store was written: heartbeats are stored all the time."""
    times = [now]
    for path in (folder / "jetstream").rglob("*.blk"):
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # it was purged meanwhile
            continue
    return max(times[1:], default=now)
