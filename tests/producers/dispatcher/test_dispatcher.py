"""The dispatcher on a real server: its cursor is the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from bus import Bus, EmbeddedServer, Ledger, Published
from producers import Admission, Dispatcher, TaskSource
from schemas import TASKS, Control, EnvironmentFault, EnvironmentSettings, Event, GroupTask, Task, encode
from tests.examples import closed, control, step, task, trained_group
from tests.raw_publisher import publish_raw

GROUPS, BOUND = 4, 1


def dispatcher(bus: Bus, *, steps: int = 10) -> Dispatcher:
    tasks = TaskSource([EnvironmentSettings(name="reverse")], run=bus.run, seed=1, group_size=2)
    admission = Admission(max_off_policy_steps=BOUND, groups_per_step=GROUPS, steps=steps)
    return Dispatcher(bus, tasks, admission, metric_interval_s=60.0)


@asynccontextmanager
async def running(bus: Bus, **options: int) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    task = asyncio.create_task(dispatcher(bus, **options).run(stop))
    yield task
    stop.set()
    await task


async def first_tasks(bus: Bus, count: int) -> list[GroupTask]:
    """The first ``count`` tasks of the log, as soon as they are there."""
    tasks: list[GroupTask] = []
    async for logged in bus.read(TASKS, follow=True):
        assert isinstance(logged.event, GroupTask)
        tasks.append(logged.event)
        if len(tasks) == count:
            break
    return tasks


async def test_groups_are_issued_up_to_the_bound_and_after_each_closing(connect_as: Any) -> None:
    bus, trainer = await connect_as("dispatcher"), await connect_as("trainer")
    ledger = Ledger(trainer, "a")
    await ledger.open()
    async with running(bus):
        await first_tasks(bus, 8)
        await ledger.append(closed(run=bus.run, group=2))
        tasks = await first_tasks(bus, 9)
    assert [task.group for task in tasks] == list(range(9))
    assert (await bus.state(TASKS)).messages == 9


async def test_a_restart_neither_skips_nor_repeats_a_group(connect_as: Any) -> None:
    trainer = await connect_as("trainer")
    ledger = Ledger(trainer, "a")
    await ledger.open()
    async with running(await connect_as("dispatcher")):
        await first_tasks(trainer, 8)
    groups = [trained_group(group=number) for number in range(GROUPS)]
    await ledger.append(step(run=trainer.run, number=1, groups=groups, packing=[[list(range(2 * len(groups)))]]))
    async with running(await connect_as("dispatcher")):
        tasks = await first_tasks(trainer, 12)
    assert [task.group for task in tasks] == list(range(12))


async def test_two_dispatchers_issue_each_group_once(connect_as: Any) -> None:
    reader = await connect_as("reader")
    async with running(await connect_as("dispatcher")), running(await connect_as("dispatcher")):
        tasks = await first_tasks(reader, 8)
    assert [task.group for task in tasks] == list(range(8))
    assert (await reader.state(TASKS)).messages == 8


async def test_tasks_are_a_pure_function_of_seed_and_number(connect_as: Any) -> None:
    bus = await connect_as("dispatcher")
    async with running(bus):
        issued = await first_tasks(bus, 8)
    again = TaskSource([EnvironmentSettings(name="reverse")], run=bus.run, seed=1, group_size=2)
    assert issued == [again.group(number, least_version=issued[number].least_version) for number in range(8)]


async def test_a_pause_holds_the_dispatcher_until_resumed(connect_as: Any) -> None:
    operator = await connect_as("operator")
    await operator.publish(Control(run=operator.run, action="pause"))
    async with running(await connect_as("dispatcher")):
        await operator.publish(Control(run=operator.run, action="limit", limit=3))
        await operator.publish(Control(run=operator.run, action="resume"))
        await first_tasks(operator, 3)
    assert (await operator.state(TASKS)).messages == 3


async def test_it_ends_when_the_last_step_is_committed(connect_as: Any) -> None:
    trainer = await connect_as("trainer")
    ledger = Ledger(trainer, "a")
    await ledger.open()
    async with running(await connect_as("dispatcher"), steps=1) as task:
        groups = [trained_group(group=group.group) for group in await first_tasks(trainer, 4)]
        await ledger.append(step(run=trainer.run, number=1, groups=groups, packing=[[list(range(2 * len(groups)))]]))
        await task


def groups_tried(bus: Bus) -> list[int]:
    """The groups that are published from now on, whether the server stores them or knows them already."""
    publish, tried = bus.publish, list[int]()

    async def noted(event: Event, **options: Any) -> Published:
        if isinstance(event, GroupTask):
            tried.append(event.group)
        return await publish(event, **options)

    bus.publish = noted  # type: ignore[method-assign]
    return tried


async def test_it_stops_while_the_server_takes_no_task(connect_as: Any) -> None:
    bus: Bus = await connect_as("dispatcher")
    publish, publishing, stop = bus.publish, asyncio.Event(), asyncio.Event()

    async def wait_for_the_server(event: Event, **options: Any) -> Published:
        if isinstance(event, GroupTask):
            publishing.set()
            await asyncio.Event().wait()
        return await publish(event, **options)

    bus.publish = wait_for_the_server  # type: ignore[method-assign]
    dispatching = asyncio.create_task(dispatcher(bus).run(stop))
    await publishing.wait()
    stop.set()
    await dispatching


async def test_its_cursor_outlives_a_purge_of_all_tasks(connect_as: Any) -> None:
    trainer: Bus = await connect_as("trainer")
    ledger = Ledger(trainer, "a")
    await ledger.open()
    async with running(await connect_as("dispatcher"), steps=1):
        await first_tasks(trainer, 4)
        groups = [trained_group(group=number) for number in range(4)]
        await ledger.append(step(run=trainer.run, number=1, groups=groups, packing=[[list(range(2 * len(groups)))]]))
    await trainer.purge(TASKS, before=5)
    again: Bus = await connect_as("dispatcher")
    tried = groups_tried(again)
    async with running(again, steps=2):
        assert [task.group for task in await first_tasks(trainer, 4)] == [4, 5, 6, 7]
    assert tried == [4, 5, 6, 7]


async def test_its_cursor_is_the_last_task_whatever_else_was_stored(connect_as: Any) -> None:
    admin: Bus = await connect_as("admin")
    async with running(await connect_as("dispatcher")):
        await first_tasks(admin, 8)
    await admin.wire.request(f"hr.{admin.run}.task.reverse", b"no task", timeout_s=5.0)
    ledger = Ledger(await connect_as("trainer"), "a")
    await ledger.open()
    await ledger.append(closed(run=admin.run, group=0))
    again: Bus = await connect_as("dispatcher")
    tried = groups_tried(again)
    async with running(again):
        newest = admin.read(TASKS, kinds=(GroupTask,), start=10, follow=True)
        assert (await anext(newest)).event is not None
    assert tried == [8]


FORGED = [b"no task", *(encode(task(group=group)) for group in (0, 3, 7, 8, 9, 10**6))]


@pytest.mark.parametrize("restarted", [False, True])
async def test_its_cursor_counts_its_own_tasks_whatever_was_stored_among_them(
    server: EmbeddedServer, connect_as: Any, restarted: bool
) -> None:
    """A forged task moves it neither backwards, where it would never get on, nor forwards."""
    watcher: Bus = await connect_as("trainer")
    ledger = Ledger(watcher, "a")
    await ledger.open()
    bus: Bus = await connect_as("dispatcher")
    tried: list[int] = []
    for closing, forged in enumerate(FORGED):
        payload = forged.replace(b'"run":"demo"', b'"run":"%s"' % bus.run.encode())
        async with running(bus):
            await watched(watcher, 8 + 2 * closing)
            if not restarted:
                await publish_raw(server.address("admin"), f"hr.{bus.run}.task.reverse", payload)
                await ledger.append(closed(run=bus.run, group=closing))
                await watched(watcher, 10 + 2 * closing)
        if restarted:
            await publish_raw(server.address("admin"), f"hr.{bus.run}.task.reverse", payload)
            await ledger.append(closed(run=bus.run, group=closing))
    async with running(bus):
        await watched(watcher, 8 + 2 * len(FORGED))
    source = f"/{bus.run}/dispatcher/"
    tried = [each.event.group async for each in watcher.read(TASKS) if source in each.headers.get("ce-source", "")]  # type: ignore[union-attr]
    assert tried == list(range(8 + len(FORGED)))


async def watched(bus: Bus, messages: int) -> None:
    """Return when TASKS has so many messages."""
    async for logged in bus.read(TASKS, follow=True):
        if logged.sequence >= messages:
            return


async def test_what_is_no_control_event_is_passed_over_and_said(
    server: EmbeddedServer, connect_as: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bus, operator = await connect_as("dispatcher"), await connect_as("operator")
    for payload in (b"noise", encode(control(run="other", action="pause", limit=None)), b'{"type":"control.v1"}'):
        await publish_raw(server.address("admin"), f"hr.{bus.run}.control", payload)
    async with running(bus):
        assert [each.group for each in await first_tasks(bus, 8)] == list(range(8))
        await operator.publish(Control(run=bus.run, action="pause"))
    for words in ("Expected `object`, got `int`", "it is a control.v1 of run 'other'", "missing required field"):
        assert words in caplog.text


async def test_what_is_no_ledger_event_closes_no_group(
    server: EmbeddedServer, connect_as: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer is fenced by it, and says so; the dispatcher waits for a trainer as before."""
    bus: Bus = await connect_as("dispatcher")
    ledger = Ledger(await connect_as("trainer"), "a")
    for end, payload in (("step", b"noise"), ("closed", encode(closed(run="other"))), ("closed", encode(step()))):
        await publish_raw(server.address("admin"), f"hr.{bus.run}.{end}", payload)
    await ledger.open()
    async with running(bus):
        await first_tasks(bus, 8)
        await ledger.append(closed(run=bus.run, group=1))
        assert [each.group for each in await first_tasks(bus, 9)] == list(range(9))
    for words in ("not a known event", "it is a closed.v1 of run 'other'", "it is a step.v1 of run 'demo'"):
        assert words in caplog.text


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), SystemExit(0), RecursionError("too deep")])
def test_an_environment_that_makes_no_task_is_named_whatever_it_raises(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(self: object, index: int) -> Task:
        raise error

    monkeypatch.setattr("environments.reverse.Reverse.task", raising)
    tasks = TaskSource([EnvironmentSettings(name="reverse")], run="demo", seed=1, group_size=2)
    with pytest.raises(
        EnvironmentFault, match=rf"cannot make task 3: {type(error).__name__}: .*headrace env try reverse"
    ):
        tasks.group(3, least_version=0)


@pytest.mark.parametrize("made", [None, Task(prompt="p", data={"n": np.float32(1)}), Task(prompt=7)])  # type: ignore[arg-type]
def test_what_is_no_task_is_named_with_its_environment(made: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.reverse.Reverse.task", lambda self, index: made)
    tasks = TaskSource([EnvironmentSettings(name="reverse")], run="demo", seed=1, group_size=2)
    with pytest.raises(EnvironmentFault, match=r"environment 'reverse' cannot make task 3.*headrace env try reverse"):
        tasks.group(3, least_version=0)
