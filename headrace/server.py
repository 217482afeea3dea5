"""Which NATS server a command talks to: one that was named, a run's live embedded one, or its store, woken up.

Credentials come from the environment, never from the command line, where other users could read them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bus import Address, BusRole, EmbeddedServer
from schemas import ConfigError, RunError

from .folder import RunFolder

URL, USER, PASSWORD = "HEADRACE_NATS_URL", "HEADRACE_NATS_USER", "HEADRACE_NATS_PASSWORD"
NKEY, CA = "HEADRACE_NATS_NKEY", "HEADRACE_NATS_CA"
TURN_S = 60.0
"""How long one waits for another reader of a run that has ended; most are done within a second."""


class Served(msgspec.Struct, frozen=True):
    """Where a run's log can be reached."""

    address: Address
    goes_on: bool
    """Whether the run may be going on there; False for a store that was woken up."""


def address_from_environment(url: str | None = None) -> Address:
    """The server that ``url`` or the environment names. Raises ConfigError when neither does."""
    url = url or os.environ.get(URL)
    if not url:
        raise ConfigError(f"no NATS server is named: give --server nats://HOST:PORT or set {URL}")
    return Address(
        url=url,
        user=os.environ.get(USER) or None,
        password=os.environ.get(PASSWORD) or None,
        nkey=_file_named_by(NKEY),
        ca=_file_named_by(CA),
    )


def _file_named_by(variable: str) -> Path | None:
    # An empty one names none: that is how a compose file leaves it out.
    return Path(named) if (named := os.environ.get(variable)) else None


def environment_for(address: Address) -> dict[str, str]:
    """The variables that hand ``address`` to a child process: all of them, for it has the rest from us."""
    environment = {URL: address.url, USER: address.user or "", PASSWORD: address.password or ""}
    for variable, file in ((NKEY, address.nkey), (CA, address.ca)):
        environment[variable] = "" if file is None else str(file.absolute())
    return environment


@contextmanager
def serving(folder: RunFolder, role: BusRole, url: str | None = None) -> Iterator[Served]:
    """Where ``role`` reaches the run's log for the length of the block.

    The named server; or the embedded one of a run that is going on; or, for a run that has ended, one that is
    started on its store and stopped again.
    """
    if url:
        yield Served(address_from_environment(url), goes_on=True)
        return
    with ExitStack() as stack:
        # Without taking turns, a second reader would take the first one's server for a run that goes on.
        stack.enter_context(turn(folder))
        live = EmbeddedServer.find(folder.nats)
        if live is not None:
            stack.close()
            yield Served(live[role], goes_on=True)
            return
        server = EmbeddedServer.start(folder.nats)
        stack.callback(server.stop)
        yield Served(server.address(role), goes_on=False)


@contextmanager
def turn(folder: RunFolder) -> Iterator[None]:
    """Who starts a server on a run's store does it alone: readers after the run and ``headrace up`` take turns.

    Raises RunError when the one before does not end in time.
    """
    with (folder.path / ".turn").open("wb") as file:
        deadline = time.monotonic() + TURN_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunError(
                        f"another headrace command has been reading the log of run {folder.name!r} for more than "
                        f"{TURN_S:g} s: let it end first (a tail in a pager, perhaps)"
                    ) from None
                time.sleep(0.02)
        yield
