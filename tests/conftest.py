"""A real NATS server for the session, and for each test that asks a run of its own on it.

``server``      the embedded server, with a user for each role
``run``         name of a fresh run whose streams exist
``connect_as``  connects to ``run`` in a role; closed at the test's end
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import settings

from bus import Bus, BusRole, EmbeddedServer, connect
from bus.settings import LogSettings, WeightsSettings

ConnectAs = Callable[..., Coroutine[Any, Any, Bus]]
_numbers = itertools.count(1)

# Who starts tests in the background of a script has them ignore SIGINT, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Property tests take the time they need: a loaded machine is no failure. Here, because @given keeps the settings that
# hold when a test is decorated, and this file is read before any of them.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer.start(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture
async def run(server: EmbeddedServer) -> str:
    name = f"test{next(_numbers)}"
    bus = await connect(server.address("topology"), run=name, role="topology", id="conftest")
    await bus.apply_topology(LogSettings(), WeightsSettings())
    await bus.close()
    return name


@pytest.fixture
async def connect_as(server: EmbeddedServer, run: str) -> AsyncIterator[ConnectAs]:
    """Coroutine function of a role and an optional id, to a Bus on the test's run."""
    buses: list[Bus] = []

    async def factory(role: BusRole, *, id: str = "") -> Bus:
        bus = await connect(server.address(role), run=run, role=role, id=id or f"{role}-{len(buses)}")
        buses.append(bus)
        return bus

    yield factory
    for bus in buses:
        await bus.close()
