"""What each role may do on a server with the configuration that ships, and what it may not.

The list is the table in docs/operations.md, section Security: it is read here, and each line is tried in each role.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from bus import BUS_ROLES, Bus, BusRole, Denied, connect
from bus.settings import LogSettings, WeightsSettings
from schemas import TASKS, WEIGHTS_BUCKET, Task
from tests import examples
from tests.real_server import RealServer
from tests.stand_in.nats_cli.backup import back_up, restore

from .actions import ACTIONS, CHUNK, FORBIDDEN, NUID, may

ROLES: tuple[BusRole, ...] = tuple(role for role in BUS_ROLES if role != "admin")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
FOREIGN = "foreign"
"""A run that the keys are not for."""
As = Callable[[BusRole, str], Coroutine[Any, Any, Bus]]


def documented() -> dict[BusRole, set[str]]:
    """Role to the names of what it may do, from the table."""
    section = DOCS.read_text(encoding="utf-8").partition("\n## Security\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    head = next(row for row in rows if row[0] == "may")
    assert head[1:] == list(ROLES)
    table = [row for row in rows[rows.index(head) + 2 :] if len(row) == len(head)]
    assert [row[0] for row in table] == list(ACTIONS)
    assert {cell for row in table for cell in row[1:]} == {"", "yes"}
    return {cast(BusRole, role): {row[0] for row in table if row[column]} for column, role in enumerate(head) if column}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """One run for each role, so that one that destroys leaves the others' alone."""
    server = RealServer(tmp_path_factory.mktemp("real") / "keys", ROLES).start()
    yield server
    server.kill()


@pytest.fixture
async def connect_as(real: RealServer) -> AsyncIterator[As]:
    buses: list[Bus] = []

    async def factory(role: BusRole, run: str) -> Bus:
        buses.append(await connect(real.address(role), run=run, role=role, id=f"{role}-{len(buses)}"))
        return buses[-1]

    yield factory
    for bus in buses:
        await bus.close()


async def furnish(connect_as: As, run: str) -> None:
    """Streams with one event of each type, a consumer in use, and an object in the bucket."""
    admin = await connect_as("admin", run)
    await admin.apply_topology(LogSettings(), WeightsSettings(store="jetstream"))
    for event in examples.every_event():
        await admin.publish(type(event)(**{**event_fields(event), "run": run}))
    bucket = WEIGHTS_BUCKET.bucket(run)
    await admin.wire.request(f"$O.{bucket}.C.{NUID}", CHUNK, timeout_s=5)
    await admin.wire.request(f"$O.{bucket}.M.b2JqZWN0", b"{}", timeout_s=5)


def event_fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


@pytest.mark.parametrize("role", ROLES)
async def test_role_may_do_what_the_documentation_lists_and_nothing_else(connect_as: As, role: BusRole) -> None:
    await furnish(connect_as, role)
    bus = await connect_as(role, role)
    forbidden = [what for what, acts in FORBIDDEN.items() if await may(bus, acts)]
    assert forbidden == []
    done = {what for what, acts in ACTIONS.items() if await may(bus, acts)}
    assert done == documented()[role]


@pytest.mark.parametrize("role", ROLES)
async def test_role_may_do_nothing_to_a_run_that_its_key_is_not_for(connect_as: As, role: BusRole) -> None:
    bus = await connect_as(role, FOREIGN)
    assert [what for what, acts in (ACTIONS | FORBIDDEN).items() if await may(bus, acts)] == []


async def test_admin_may_do_everything(connect_as: As) -> None:
    await furnish(connect_as, FOREIGN)
    admin = await connect_as("admin", FOREIGN)
    assert {what for what, acts in ACTIONS.items() if await may(admin, acts)} == set(ACTIONS)


@pytest.mark.parametrize("role", ROLES)
async def test_no_role_hears_what_another_is_answered(connect_as: As, role: BusRole) -> None:
    """Tried with a real answer: of the two, only the one who asked may have it."""
    heard: list[str] = []

    def take(message: Any) -> None:
        heard.append(message.subject)

    curious = await connect_as(role, role)
    other: BusRole = "trainer" if role != "trainer" else "generator"
    asking = await connect_as(other, role)
    for subject in (f"_INBOX.{other}.>", f"_INBOX.{other}.*", "_INBOX.>", "_INBOX.*.>", "*.*.>"):
        with pytest.raises(Denied, match=f"role {role} may not subscribe to"):
            await curious.wire.subscribe(subject, take)
    await curious.wire.subscribe(f"_INBOX.{role}.>", take)
    await asking.wire.api("INFO")
    await curious.wire.api("INFO")
    assert [subject for subject in heard if not subject.startswith(f"_INBOX.{role}.")] == []
    assert heard


async def test_operator_backs_a_stream_up_and_topology_restores_it(connect_as: As, tmp_path: Path) -> None:
    """More than the server sends at once, so that each part of it has to be acknowledged."""
    run: BusRole = "operator"
    admin = await connect_as("admin", run)
    await admin.apply_topology(LogSettings(), WeightsSettings(store="jetstream"))
    before = (await admin.state(TASKS)).last_sequence
    for group in range(100, 104):
        prompt = secrets.token_hex(3 * 1024 * 1024)
        await admin.publish(examples.task(run=run, group=group, task=Task(prompt=prompt)))
    operator, topology = await connect_as("operator", run), await connect_as("topology", run)
    stream = TASKS.name(run)
    await back_up(operator.wire._client, stream, tmp_path)
    await topology.wire.api(f"STREAM.DELETE.{stream}")
    await restore(topology.wire._client, tmp_path)
    assert (await admin.state(TASKS)).last_sequence == before + 4
