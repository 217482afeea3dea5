"""``headrace up``: the whole run on this machine, supervised, with progress, and a summary at its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bus import Bus, BusRole, connect
from headrace.models import make_model
from schemas import LEDGER, ROLLOUTS, ConfigError, RunError, Step, Weights

from . import config as configuration
from .config import RunConfig
from .doctor import engine, played, port
from .folder import RunFolder
from .hosted_server import HostedServer
from .progress import Progress
from .server import environment_for, turn
from .summary import Summary, summarize
from .supervisor import RoleCommand, Supervisor
from .view import RunView
from .watch import Watch

REDRAW_S = 1.0


def up(config: RunConfig, parent: Path, console: Console, *, accept_changes: bool = False) -> Summary:
    """Start or go on with the run; returns its summary when the last step is committed.

    Raises RunError when it is finished already, was started with another configuration, was stopped, or a role
    is given up; and every error of its parts that has a message.
    """
    folder = RunFolder(parent / config.run.name)
    _check_possible(config)
    _check_unchanged(config, folder, accept_changes)
    folder.make()
    make_model(config.model, say=lambda text: console.print(text, highlight=False, markup=False))
    with turn(folder):
        server = HostedServer(folder)
    try:
        return asyncio.run(_run(config, folder, server, console))
    finally:
        server.stop()


def _check_possible(config: RunConfig) -> None:
    """What a run on one machine cannot have. Raises ConfigError before anything is started."""
    if config.log.replicas > 1:
        raise ConfigError(
            f"log.replicas is {config.log.replicas}, and the embedded server is one: set it to 1, or run the roles "
            "against a cluster with headrace train, generate and dispatch"
        )
    for finding in (engine(config), *played(config), *port(config)):
        if not finding.ok:
            raise ConfigError(": ".join(filter(None, (finding.detail, finding.remedy))))


def _check_unchanged(config: RunConfig, folder: RunFolder, accept_changes: bool) -> None:
    if not folder.exists or accept_changes:
        return
    changes = configuration.differences(configuration.stored(folder.path), config)
    if changes:
        raise RunError(
            f"run {config.run.name!r} was started with another configuration ({'; '.join(changes)}): "
            "give the run another name with --set run.name=NAME, or go on with --accept-changes"
        )


async def _run(config: RunConfig, folder: RunFolder, server: HostedServer, console: Console) -> Summary:
    bus = await connect(server.address("supervisor"), run=config.run.name, role="supervisor", id="up")
    try:
        await bus.apply_topology(config.log)
        await _check_unfinished(bus, config)
        configuration.store(config, folder.path)
        watch = Watch(bus)
        await watch.catch_up()
        watch.view.stopped = False  # what was asked of an earlier `headrace up`
        await _supervise(config, folder, server, watch, console)
        await watch.catch_up()
        return summarize(watch.view, rollouts_published=(await bus.state(ROLLOUTS)).last_sequence)
    finally:
        await bus.close()


async def _check_unfinished(bus: Bus, config: RunConfig) -> None:
    last, weights = await bus.last(LEDGER, Step), await bus.last(LEDGER, Weights)
    if last is None or not isinstance(last.event, Step) or last.event.number < config.run.steps:
        return
    if weights is None or not isinstance(weights.event, Weights) or weights.event.version < last.event.number:
        return  # It was killed between its last step and the announcement of the weights: the trainer makes up for it.
    raise RunError(
        f"run {config.run.name!r} is finished: step {last.event.number} of {config.run.steps} is committed. "
        f"Extend it with --set run.steps={2 * last.event.number}, or start another with --set run.name=NAME"
    )


async def _supervise(
    config: RunConfig, folder: RunFolder, server: HostedServer, watch: Watch, console: Console
) -> None:
    stop, view = asyncio.Event(), watch.view
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    supervisor = Supervisor(role_commands(config, folder, server), folder.logs, config.supervisor)
    with Progress(view, config.run.steps, console) as progress:
        progress.say(f"run {config.run.name} in {folder.path}: {config.run.steps} steps; logs in {folder.logs}")
        supervisor.on_restart = lambda name, code, delay_s: progress.say(
            f"{name} ended with {code} and is started again in {delay_s:g} s"
        )
        async with watch.following() as changed:
            aside = [
                asyncio.create_task(_show(progress, view, changed, stop)),
                asyncio.create_task(server.keep(lambda: progress.say("nats-server has died and is started again"))),
            ]
            try:
                await _with_aside(supervisor.run(stop), aside)
            finally:
                progress.update()
    if view.committed < config.run.steps:
        raise RunError(
            f"run {config.run.name!r} was stopped after step {view.committed} of {config.run.steps}: "
            "the same command goes on with it"
        )


async def _with_aside(main: Coroutine[Any, Any, None], aside: list[asyncio.Task[None]]) -> None:
    """Run ``main`` to its end; what goes on aside, and never ends by itself, ends with it or fails for both."""
    running = asyncio.create_task(main)
    try:
        done, _ = await asyncio.wait([running, *aside], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (running, *aside):
            task.cancel()
        await asyncio.gather(running, *aside, return_exceptions=True)


async def _show(progress: Progress, view: RunView, changed: asyncio.Event, stop: asyncio.Event) -> None:
    while True:
        progress.update()
        if view.stopped:
            stop.set()
        changed.clear()
        try:
            await asyncio.wait_for(changed.wait(), REDRAW_S)
        except TimeoutError:
            continue


def role_commands(config: RunConfig, folder: RunFolder, server: HostedServer) -> list[RoleCommand]:
    """The processes of a run on one machine."""
    stored = str(folder.path / configuration.FILE_NAME)
    place = ["--dir", str(folder.path.parent)]

    def command(name: str, role: BusRole, *arguments: str, essential: bool = False) -> RoleCommand:
        return RoleCommand(
            name=name,
            arguments=[*arguments, stored, *place],
            environment=environment_for(server.address(role)),
            essential=essential,
        )

    commands = [
        command("trainer", "trainer", "train", essential=True),
        command("dispatcher", "dispatcher", "dispatch"),
    ]
    commands += [
        command(f"generator-{number}", "generator", "generate", "--id", str(number))
        for number in range(config.generator.count)
    ]
    if config.metrics.port:
        commands.append(command("sink-metrics", "sink", "sink", "metrics"))
    if config.archive.enabled:
        commands.append(command("sink-archive", "sink", "sink", "archive"))
    return commands


def print_summary(summary: Summary, console: Console) -> None:
    """The summary as lines that line up."""
    console.print()
    for name, value in msgspec.to_builtins(summary).items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        console.print(
            f"{name:28} {shown if shown not in (None, {}) else '-'}", highlight=False, markup=False, soft_wrap=True
        )
