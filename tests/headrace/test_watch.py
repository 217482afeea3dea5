from __future__ import annotations

import asyncio

from headrace.watch import Watch
from schemas import TELEMETRY
from tests import examples
from tests.conftest import ConnectAs
from tests.headrace.recorded import events, publish
from tests.waiting import eventually


async def test_catching_up_twice_counts_nothing_twice(run: str, connect_as: ConnectAs) -> None:
    admin, reader = await connect_as("admin"), await connect_as("reader")
    await publish(admin, *events(run, 2))
    watch = Watch(reader)
    await watch.catch_up()
    await watch.catch_up()
    assert watch.view.committed == 2
    assert len(watch.view.steps) == 2
    assert len(watch.view.dead) == 1
    assert watch.view.roles["generator/gen-0"].restarts == 0


async def test_following_takes_in_what_comes_once(run: str, connect_as: ConnectAs) -> None:
    admin, supervisor = await connect_as("admin"), await connect_as("supervisor")
    await publish(admin, *events(run, 1))
    watch = Watch(supervisor)
    await watch.catch_up()
    async with watch.following() as changed:
        await publish(admin, examples.step(run=run, number=2), examples.control(run=run, action="pause", limit=None))
        async with asyncio.timeout(30):
            await changed.wait()

        async def all_there() -> bool:
            return watch.view.committed == 2 and watch.view.paused

        await eventually(all_there)
    await watch.catch_up()
    assert [step.number for step in watch.view.steps] == [1, 2]


async def test_a_run_whose_streams_an_older_headrace_made_has_no_evaluations(run: str, connect_as: ConnectAs) -> None:
    admin, reader = await connect_as("admin"), await connect_as("reader")
    await publish(admin, *events(run, 2))
    await admin.wire.api(f"STREAM.DELETE.{run}_EVALUATIONS")
    watch = Watch(reader)
    await watch.catch_up()
    assert (watch.view.committed, watch.view.scores) == (2, [])
    async with watch.following():
        pass


async def test_evaluations_are_watched(run: str, connect_as: ConnectAs) -> None:
    admin, reader = await connect_as("admin"), await connect_as("reader")
    await publish(admin, examples.evaluated(run=run), examples.evaluated(run=run, task=18))
    watch = Watch(reader)
    await watch.catch_up()
    [score] = watch.view.scores
    assert (score.env, score.version, score.plays) == ("reverse", 4, 2)


async def test_messages_that_are_no_events_are_passed_over(run: str, connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    await admin.wire.request(f"hr.{run}.metric.generator.x", b"not an event", timeout_s=5)
    await publish(admin, examples.metric(run=run, gauges={"running": 1.0}))
    watch = Watch(admin)
    await watch.catch_up()
    assert (await admin.state(TELEMETRY)).messages == 2
    assert watch.view.gauge("generator", "running") == 1.0
