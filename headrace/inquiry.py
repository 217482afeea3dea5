"""Questions to a run's log, during the run and after it, answered wherever the log is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from bus import BUS_ROLES, Address, ApiError, Bus, BusRole, EmbeddedServer, Logged, connect
from schemas import EVALUATIONS, Event, RunError, ServerUnreachable, StreamSpec

from .folder import RunFolder
from .pulse import Pulse
from .server import Served, serving
from .silence import ServerSilent, moment, silent_server

T = TypeVar("T")
Question = Callable[[Bus, bool], Coroutine[Any, Any, T]]
"""From a connection, and whether the run may be going on, to the answer."""
NO_STREAM = 10059
LOOK_EVERY_S = 0.3
CONNECT_S = 5.0
"""A person waits for this; roles are more patient."""
SILENT_S = 5.0
"""A server that has not answered for so long keeps nobody waiting any longer who is not patient."""


class Place(msgspec.Struct, frozen=True):
    """Where a run is."""

    run: str
    folder: RunFolder
    """Need not exist where ``url`` is given."""
    url: str | None = None
    """Of a NATS server; None for the run's own embedded one."""


class _ServerEnded(Exception):
    """The embedded server ended while it was being asked, because the run did."""


def ask(place: Place, question: Question[T], *, role: BusRole = "reader", id: str = "cli", patient: bool = False) -> T:
    """The answer to ``question``. It is asked again when the run ends meanwhile and takes its server along.

    ``patient``: wait for a server that has stopped answering, for as long as it does.
    Raises RunError where the server has no such run; ServerSilent where the run's own server is there and gives no
    answer, with what is known of it; ServerUnreachable where another one gives none.
    """
    while True:
        with serving(place.folder, role, place.url) as served, _without_alarm(place):
            try:
                return asyncio.run(_ask(place, served, question, role, id, patient))
            except _ServerEnded:
                continue


async def ask_meanwhile(place: Place, question: Question[T], *, id: str) -> T:
    """As ``ask``, for a loop that has more to do. It rests while a server is started on the store of an ended run."""
    while True:
        with serving(place.folder, "reader", place.url) as served, _without_alarm(place):
            try:
                return await _ask(place, served, question, "reader", id, patient=False)
            except _ServerEnded:
                continue


async def _ask(place: Place, served: Served, question: Question[T], role: BusRole, id: str, patient: bool) -> T:
    try:
        bus = await connect(
            served.address, run=place.run, role=role_of(served.address, role), id=id, timeout_s=CONNECT_S
        )
    except ServerUnreachable:
        if _ended(place):
            raise _ServerEnded from None
        _raise_if_silent(place)
        raise
    asking = asyncio.create_task(question(bus, served.goes_on))
    watching = asyncio.create_task(_until_server_ends(bus, place))
    waiting = asyncio.create_task(_until_server_is_silent(bus, place, patient))
    try:
        await asyncio.wait({asking, watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        if waiting.done():
            waiting.result()
        raise _ServerEnded
    except ApiError as error:
        if error.fault.err_code != NO_STREAM:
            raise
        raise RunError(
            f"there is no run {place.run!r} on {served.address.url}: check the name, or start the run there first"
        ) from None
    finally:
        for task in (asking, watching, waiting):
            task.cancel()
        await asyncio.gather(asking, watching, waiting, return_exceptions=True)
        await bus.close()


def role_of(address: Address, wanted: BusRole) -> BusRole:
    """A user may listen to the answers of its own role only; one that is called as a role is of that role."""
    return next((role for role in BUS_ROLES if role == address.role), wanted)


@contextmanager
def _without_alarm(place: Place) -> Iterator[None]:
    """No warning when the connection to an embedded server is lost: it ends with its run."""

    def keep(record: logging.LogRecord) -> bool:
        return place.url is not None or record.levelno >= logging.ERROR

    log = logging.getLogger("headrace.bus")
    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


def _ended(place: Place) -> bool:
    return place.url is None and EmbeddedServer.find(place.folder.nats) is None


async def _until_server_ends(bus: Bus, place: Place) -> None:
    # A connection waits for its server for ever, and that of a run which has ended does not come back.
    while bus.connected or not _ended(place):  # noqa: ASYNC110 - nobody tells when a server ends
        await asyncio.sleep(LOOK_EVERY_S)


async def _until_server_is_silent(bus: Bus, place: Place, patient: bool) -> None:
    """Raise ServerSilent or ServerUnreachable when the server has stopped answering; never return."""
    pulse = Pulse(bus)
    feeling = asyncio.create_task(pulse.feel())
    try:
        while patient or pulse.silent_since(time.time(), SILENT_S) is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        feeling.cancel()
        await asyncio.gather(feeling, return_exceptions=True)
    _raise_if_silent(place, pulse.heard_at)
    raise ServerUnreachable(
        f"the NATS server at {bus.wire.address.url} gives no answer since {moment(pulse.heard_at)}: look at its log"
    )


def _raise_if_silent(place: Place, since: float | None = None) -> None:
    now = time.time()
    silence = None if place.url else silent_server(place.folder, now, since)
    if silence is not None:
        raise ServerSilent(silence, now)


async def those_made(bus: Bus, specs: Sequence[StreamSpec]) -> list[StreamSpec]:
    """Those of ``specs`` that the run has: one whose streams an older Headrace made may have no EVALUATIONS."""
    found = [spec for spec in specs if spec is not EVALUATIONS]
    if len(found) < len(specs):
        try:
            await bus.state(EVALUATIONS)
        except ApiError as error:
            if error.fault.err_code != NO_STREAM:
                raise
            return found
    return list(specs)


async def newest(bus: Bus, spec: StreamSpec, count: int, kinds: Sequence[type[Event]] = ()) -> list[Logged]:
    """The last ``count`` messages of a stream, or of ``kinds`` in it, oldest first."""
    state, window = await bus.state(spec), count
    while True:
        start = max(1, state.first_sequence, state.last_sequence - window + 1)
        found = [logged async for logged in bus.read(spec, kinds=kinds, start=start)]
        if len(found) >= count or start <= max(1, state.first_sequence):
            return found[-count:] if count else []
        window *= 4


async def by_time(streams: Sequence[AsyncIterator[Logged]]) -> AsyncIterator[Logged]:
    """Messages of several streams in the order of their times; one of each is held at a time."""
    heads: list[tuple[Logged, AsyncIterator[Logged]]] = []
    for stream in streams:
        if (head := await anext(stream, None)) is not None:
            heads.append((head, stream))
    while heads:
        first = min(range(len(heads)), key=lambda i: heads[i][0].time)
        logged, stream = heads[first]
        yield logged
        following = await anext(stream, None)
        if following is None:
            del heads[first]
        else:
            heads[first] = (following, stream)
