"""Three servers with three copies of everything: any one of them may die."""

from __future__ import annotations

import pytest

from bus import connect
from tests.compose.project import Project
from tests.compose.test_containers import logbook_of
from tests.end_to_end.logbook import check

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

OPTIONS = "--set run.steps=100000"
SERVERS = ("nats", "nats-2", "nats-3")


async def test_run_goes_on_when_one_server_dies_and_then_another(cluster: Project) -> None:
    cluster.up(options=OPTIONS)
    async with cluster.watching() as view:
        await cluster.until(lambda: view.committed >= 2, "the first steps are committed")
        assert await replicas(cluster) == {3}
        for server in SERVERS[1:]:
            (container,) = cluster.containers(server)
            pid = cluster.pid(container)
            cluster.kill(container)
            cluster.say(f"{server} is killed")
            await cluster.steps(view, 2)
            await cluster.until(
                lambda c=container, p=pid: cluster.pid(c) not in (0, p) and is_current(cluster, c), f"{server} is back"
            )
            await cluster.steps(view, 2)
    cluster.compose("stop", "dispatcher", "generator", "trainer")
    check(await logbook_of(cluster, OPTIONS))


def is_current(project: Project, container: str) -> bool:
    """Whether the server has caught up with all of its streams."""
    page = "http://127.0.0.1:8222/healthz"
    try:
        return "ok" in project.engine.run("exec", container, "wget", "-q", "-O", "-", page)
    except AssertionError:
        return False


async def replicas(project: Project) -> set[int]:
    """How many copies the run's streams have, those of the consumers left out."""
    bus = await connect(project.address, run=project.run, role="reader", id="test")
    try:
        names = [
            f"{project.run}_{kind}"
            for kind in ("TASKS", "ROLLOUTS", "LEDGER", "TELEMETRY", "DEAD", "CONTROL", "EVALUATIONS")
        ]
        found = [await bus.wire.api(f"STREAM.INFO.{name}") for name in [*names, f"OBJ_{project.run}_weights"]]
    finally:
        await bus.close()
    return {info["config"]["num_replicas"] for info in found}
