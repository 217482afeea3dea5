"""The platform as containers, on one server: one run that is trained, extended, killed, cut off and taken up again.

The tests follow each other on that run, because three engines take minutes to start; the last one reads its whole log.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bus import connect
from headrace import config as configuration
from headrace.folder import RunFolder
from headrace.inquiry import newest
from headrace.summary import mean_reward
from schemas import LEDGER, ROLLOUTS, Rollout, Step
from tests.compose.project import Project
from tests.end_to_end.logbook import Logbook, check, take_all

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

ROLES = ("dispatcher", "generator", "trainer")
STEPS = 70
"""Of the demo's configuration."""
FURTHER = "--set run.steps=100000 --set generator.lease_s=5.0"
CUT_OFF_S = 60.0
TAKEOVER_S = 15.0
"""Silence after which another trainer may take over."""


async def test_demo_reaches_its_reward(one_server: Project) -> None:
    began = time.monotonic()
    one_server.up()
    async with one_server.watching() as view:
        await one_server.until(lambda: view.committed >= 1, "the first step is committed")
        print(f"from up to the first step: {time.monotonic() - began:.0f} s")
        await one_server.until(lambda: view.committed >= STEPS, f"all {STEPS} steps are committed")
        reward = mean_reward(view.steps[-5:])
    print(f"reward of the last five steps: {reward:.3f}")
    assert reward is not None
    assert reward >= 0.85


async def test_finished_roles_stay_and_are_healthy(one_server: Project) -> None:
    for role in ROLES:
        (container,) = one_server.containers(role)
        await one_server.until(
            lambda each=container: "done: waiting to be stopped" in one_server.says(each), f"{role} has nothing to do"
        )
        await one_server.until(lambda each=container: one_server.health(each) == "healthy", f"{role} is healthy")
        assert one_server.restarts(container) == 0


def test_containers_keep_nothing_in_anonymous_volumes(one_server: Project) -> None:
    mounts = [
        mount
        for service in ("keys", "nats", "topology", *ROLES)
        for container in one_server.containers(service)
        for mount in one_server.inspect(container)["Mounts"]
    ]
    assert {mount["Name"] for mount in mounts if mount["Type"] == "volume"} == {
        f"{one_server.name}_{volume}" for volume in ("nats", "models", "runs")
    }


def test_generators_and_trainer_share_nothing_that_is_written(one_server: Project) -> None:
    """Only configurations, and files of environments beside them, and these can be read alone."""

    def writable(service: str) -> dict[str, bool]:
        return {
            m["Source"]: m["RW"] for each in one_server.containers(service) for m in one_server.inspect(each)["Mounts"]
        }

    generator, trainer = writable("generator"), writable("trainer")
    shared = generator.keys() & trainer.keys()
    assert {Path(source).name for source in shared} == {"configs"}
    assert not any(generator[source] or trainer[source] for source in shared)


async def test_three_generators_share_the_work_of_the_extended_run(one_server: Project) -> None:
    one_server.up("--scale", "generator=3", options=FURTHER)
    ids = {container[:12] for container in one_server.containers("generator")}
    assert len(ids) == 3
    async with one_server.watching() as view:
        await one_server.until(
            lambda: all(
                f"generator/{id}" in view.roles and view.roles[f"generator/{id}"].state == "ready" for id in ids
            ),
            "all three are ready",
        )
        await one_server.steps(view, 5)
        for _ in range(20):
            shares = await generators_of_the_last_steps(one_server)
            if sum(share >= ids for share in shares) >= 3:
                break
            await one_server.steps(view, 1)
        print("generators in each of the last five steps:", [len(share) for share in shares])
    assert sum(share >= ids for share in shares) >= 3


async def generators_of_the_last_steps(project: Project) -> list[set[str]]:
    """Who has played what each of the last five steps trained."""
    bus = await connect(project.address, run=project.run, role="reader", id="shares")
    try:
        steps = [each.event for each in await newest(bus, LEDGER, 5, (Step,)) if isinstance(each.event, Step)]
        trained = [{sequence for group in step.groups for sequence in group.sequences} for step in steps]
        by = {}
        async for logged in bus.read(ROLLOUTS, start=min(set.union(*trained))):
            if isinstance(logged.event, Rollout):
                by[logged.sequence] = logged.event.generator
    finally:
        await bus.close()
    return [{by[sequence] for sequence in sequences} for sequences in trained]


@pytest.mark.parametrize(("service", "count"), [("nats", 1), ("dispatcher", 1), ("trainer", 1), ("generator", 2)])
async def test_run_goes_on_after_a_kill(one_server: Project, service: str, count: int) -> None:
    killed = one_server.containers(service)[:count]
    pids = [one_server.pid(container) for container in killed]
    restarts = [one_server.restarts(container) for container in killed]
    async with one_server.watching() as view:
        for container in killed:
            one_server.kill(container)
        one_server.say(f"killed {count} of {service}")
        for container, pid, before in zip(killed, pids, restarts, strict=True):
            await one_server.until(
                lambda c=container, p=pid: one_server.pid(c) not in (0, p), f"{service} {container[:12]} is back"
            )
            assert one_server.restarts(container) == before + 1
        await one_server.steps(view, 2)
        if service == "generator":
            names = [f"generator/{container[:12]}" for container in killed]
            await one_server.until(
                lambda: all(view.roles[each].state == "ready" and view.roles[each].restarts for each in names),
                "the killed generators play again",
            )
            await one_server.steps(view, 2)


async def test_frozen_role_turns_unhealthy(one_server: Project) -> None:
    (dispatcher,) = one_server.containers("dispatcher")
    await one_server.until(lambda: one_server.health(dispatcher) == "healthy", "the dispatcher is healthy")
    with one_server.frozen(dispatcher):
        await one_server.until(lambda: one_server.health(dispatcher) == "unhealthy", "the dispatcher is unhealthy")
    await one_server.until(lambda: one_server.health(dispatcher) == "healthy", "the dispatcher is healthy again")
    async with one_server.watching() as view:
        await one_server.steps(view, 1)


async def test_down_keeps_the_run_and_the_next_up_goes_on(one_server: Project) -> None:
    async with one_server.watching() as view:
        committed = view.committed
    one_server.down()
    one_server.up(options=FURTHER)
    async with one_server.watching() as view:
        await one_server.until(lambda: view.committed >= committed, "the run is there")
        await one_server.steps(view, 3)


async def test_generator_that_was_cut_off_comes_back_by_itself(one_server: Project) -> None:
    (generator,) = one_server.containers("generator")
    pid = one_server.pid(generator)
    async with one_server.watching() as view, one_server.cut_off(generator):
        until = time.monotonic() + CUT_OFF_S
        await one_server.until(lambda: one_server.health(generator) == "unhealthy", "the generator is unhealthy")
        await one_server.until(lambda: time.monotonic() > until, f"{CUT_OFF_S:g} s have passed")
    async with one_server.watching() as view:
        await one_server.steps(view, 3)
        await one_server.until(lambda: one_server.health(generator) == "healthy", "the generator is healthy")
    assert one_server.pid(generator) == pid
    assert one_server.restarts(generator) == 0


async def test_trainer_that_was_cut_off_cannot_fork_the_ledger(one_server: Project) -> None:
    (trainer,) = one_server.containers("trainer")
    async with one_server.watching() as view:
        first = view.roles["trainer/trainer"]
        async with one_server.cut_off(trainer):
            await one_server.until(
                lambda: time.time() - first.last_seen > TAKEOVER_S + 1, f"it was silent for {TAKEOVER_S:g} s"
            )
            start_another_trainer(one_server, "second")
            await one_server.until(lambda: "trainer/second" in view.roles, "another trainer takes over")
            await one_server.steps(view, 2)
        await one_server.until(lambda: "waiting to be stopped" in one_server.says(trainer), "the first is fenced")
        await one_server.until(lambda: one_server.health(trainer) == "unhealthy", "the first is unhealthy")
        assert "second" in one_server.says(trainer)
        assert one_server.restarts(trainer) == 0
        await one_server.steps(view, 2)


def start_another_trainer(project: Project, instance: str) -> None:
    """A trainer of another name, with a folder of its own: all that it knows of the run comes from the log."""
    project.compose(
        "run", "--detach", "--no-deps", "--volume", f"{project.name}_{instance}:/headrace/runs", "trainer",
        "train", "configs/demo.toml", "--set", f"run.name={project.run}", "--set", "weights.store=jetstream",
        *FURTHER.split(), "--set", f"trainer.instance={instance}",
    )  # fmt: skip


async def test_stopped_roles_stay(one_server: Project) -> None:
    one_server.headrace("stop", one_server.run)
    for role in ("dispatcher", "generator"):
        for container in one_server.containers(role):
            await one_server.until(
                lambda each=container: "done: waiting to be stopped" in one_server.says(each), f"{role} is stopped"
            )
    async with one_server.watching() as view:
        second = view.roles["trainer/second"]
        await one_server.until(lambda: second.state == "stopped", "the other trainer is stopped")


async def test_log_holds_all_that_every_log_must(one_server: Project) -> None:
    book = await logbook_of(one_server, FURTHER)
    check(book)
    assert {"trainer", "second"} <= {term.instance for term in book.terms}
    print(f"{len(book.steps)} steps, {len(book.tasks)} tasks, {len(book.rollouts)} rollouts, {len(book.terms)} terms")


async def logbook_of(project: Project, options: str) -> Logbook:
    """Its whole log, read from outside with the reader's key."""
    overrides = [f"run.name={project.run}", *(word for word in options.split() if word != "--set")]
    book = Logbook(RunFolder(project.keys / "nowhere"), configuration.load("configs/demo.toml", overrides))
    async with asyncio.timeout(120):
        await take_all(book, project.address)
    return book
