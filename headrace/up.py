"""``headrace up``: the whole run on this machine, supervised, with progress, and a summary at its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from bus import Bus, BusRole, Telemetry, connect
from consumers.trainer import RoomWatch
from headrace.models import make_model
from schemas import ROLLOUTS, ConfigError, RunError

from . import config as configuration
from .config import RunConfig
from .continuation import check_unchanged, finished
from .doctor import compiling, engine, loss, played, port
from .evaluations import plan_of, score_line
from .folder import RunFolder
from .gpus import VARIABLE, gpus_here, scarce, share_out, wanted
from .hosted_server import HostedServer
from .log_room import room_of
from .progress import Progress
from .pulse import Pulse
from .server import environment_for, turn
from .silence import Silence, silent_server
from .summary import Summary, summarize
from .supervisor import RoleCommand, Supervisor
from .view import RunView
from .watch import Watch

T = TypeVar("T")
REDRAW_S = 1.0
ENDS = (signal.SIGTERM, signal.SIGINT)
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""For a trainer, which makes a file of all weights each step: glibc asks for large pages, where Linux leaves that to
programs. Measured for 540 MB: 0.08 s of CPU time instead of 0.45, nearly all of it page faults."""


def up(config: RunConfig, parent: Path, console: Console, *, accept_changes: bool = False) -> Summary:
    """Start or go on with the run; returns its summary when the last step is committed.

    Raises RunError when it is finished already, was started with another configuration, was stopped, or a role
    is given up; and every error of its parts that has a message.
    """
    folder = RunFolder(parent / config.run.name)
    _check_possible(config)
    if not accept_changes:
        check_unchanged(config, folder)
    folder.make()

    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    gpus = gpus_here()
    if (words := scarce(gpus, wanted(config))) is not None:
        say(words)
    make_model(config.model, tokens=config.generator.max_model_len, say=say)
    with turn(folder):
        server = HostedServer(folder)
    try:
        running = _run(config, folder, server, console, gpus, accept_changes)
        return asyncio.run(_with_aside(running, [server.keep(say)]))
    finally:
        server.stop()


def _check_possible(config: RunConfig) -> None:
    """What a run on one machine cannot have. Raises ConfigError before anything is started."""
    if config.log.replicas > 1:
        raise ConfigError(
            f"log.replicas is {config.log.replicas}, and the embedded server is one: set it to 1, or run the roles "
            "against a cluster with headrace train, generate and dispatch"
        )
    started = [str(number) for number in range(config.generator.count)]
    if config.evaluation.every_steps and config.evaluation.generator not in started:
        raise ConfigError(
            f"evaluation.generator is {config.evaluation.generator!r}, which headrace up does not start: "
            f"use one of {', '.join(started)}"
        )
    for finding in (engine(config), *played(config), loss(config), *compiling(config), *port(config)):
        if not finding.ok:
            raise ConfigError(": ".join(filter(None, (finding.detail, finding.remedy))))


async def _run(
    config: RunConfig,
    folder: RunFolder,
    server: HostedServer,
    console: Console,
    gpus: Sequence[str],
    accept_changes: bool,
) -> Summary:
    bus = await connect(server.address("supervisor"), run=config.run.name, role="supervisor", id="up")
    try:
        await bus.apply_topology(config.log, config.weights)
        watch = Watch(bus, config.generator.metric_interval_s)
        watch.view.plan = plan_of(config)
        await watch.catch_up()
        if (words := await finished(bus, config, folder.checkpoints)) is not None and not watch.view.evaluation_left:
            raise RunError(words)
        configuration.store(config, folder.path)
        watch.view.stopped = False  # what was asked of an earlier `headrace up`
        commands = role_commands(config, folder, server, gpus, accept_changes=accept_changes)
        await _supervise(config, folder, server, bus, watch, console, commands)
        return summarize(watch.view, rollouts_published=(await bus.state(ROLLOUTS)).last_sequence)
    finally:
        await bus.close()


async def _supervise(
    config: RunConfig,
    folder: RunFolder,
    server: HostedServer,
    bus: Bus,
    watch: Watch,
    console: Console,
    commands: Sequence[RoleCommand],
) -> None:
    stop, view, pulse = asyncio.Event(), watch.view, Pulse(bus)

    def on_signal() -> None:
        server.wake()  # Where a signal stopped it, the roles could not say their last words.
        stop.set()

    supervisor = Supervisor(commands, folder.logs, config.supervisor)
    server_silence = partial(_server_silence, folder, pulse, view.silent_after_s)
    with Progress(view, config.run.steps, console, server=server_silence) as progress:
        progress.say(f"run {config.run.name} in {folder.path}: {config.run.steps} steps; logs in {folder.logs}")
        supervisor.on_restart = lambda name, code, delay_s: progress.say(
            f"{name} ended with {code} and is started again in {delay_s:g} s"
        )
        telemetry = Telemetry(bus, lambda: supervisor.gauges, interval_s=config.generator.metric_interval_s)
        async with telemetry, watch.following() as changed:
            telemetry.ready()
            try:
                with _signals_call(on_signal):
                    await _with_aside(supervisor.run(stop), [_show(progress, view, changed, stop), pulse.feel()])
            finally:
                progress.update()
        if not stop.is_set():
            await watch.catch_up()  # The last step may be stored, and not yet be seen.
            progress.update()
    if view.committed < config.run.steps:
        raise RunError(
            f"run {config.run.name!r} was stopped after step {view.committed} of {config.run.steps}: "
            "the same command goes on with it"
        )
    if stop.is_set() and view.evaluation_left:
        raise RunError(
            f"run {config.run.name!r} was stopped before version {config.run.steps} was evaluated: "
            "the same command goes on with it"
        )


def _server_silence(folder: RunFolder, pulse: Pulse, after_s: float, now: float) -> Silence | None:
    since = pulse.silent_since(now, after_s)
    return None if since is None else silent_server(folder, now, since)


@contextmanager
def _signals_call(act: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call ``act`` within the block; around it, where no role runs, they interrupt us."""
    loop = asyncio.get_running_loop()
    for number in ENDS:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in ENDS:
            loop.remove_signal_handler(number)


async def _with_aside(main: Coroutine[Any, Any, T], aside: Sequence[Coroutine[Any, Any, None]]) -> T:
    """Run ``main`` to its end; what goes on aside, and never ends by itself, ends with it or fails for both."""
    running = asyncio.create_task(main)
    beside = [asyncio.create_task(each) for each in aside]
    try:
        done, _ = await asyncio.wait([running, *beside], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return running.result()
    finally:
        for task in (running, *beside):
            task.cancel()
        await asyncio.gather(running, *beside, return_exceptions=True)


async def _show(progress: Progress, view: RunView, changed: asyncio.Event, stop: asyncio.Event) -> None:
    room_watch = RoomWatch()
    while True:
        progress.update()
        if (words := room_watch.news(room_of(view))) is not None:
            progress.say(words)
        if view.stopped:
            stop.set()
        changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(REDRAW_S):
                await changed.wait()


def role_commands(
    config: RunConfig,
    folder: RunFolder,
    server: HostedServer,
    gpus: Sequence[str] = (),
    *,
    accept_changes: bool = False,
) -> list[RoleCommand]:
    """The processes of a run on one machine, each with GPUs of its own where there are enough.

    ``accept_changes``: the trainer goes on with another configuration.
    """
    stored = str(folder.path / configuration.FILE_NAME)
    place = ["--dir", str(folder.path.parent)]

    shares = iter(share_out(gpus, wanted(config)))

    def command(name: str, role: BusRole, *arguments: str, essential: bool = False) -> RoleCommand:
        own = LARGE_PAGES if role == "trainer" else {}
        if gpus and role in ("trainer", "generator"):
            own = own | {VARIABLE: ",".join(next(shares))}
        return RoleCommand(
            name=name,
            arguments=[*arguments, stored, *place],
            environment=environment_for(server.address(role)) | own,
            essential=essential,
        )

    commands = [
        command("trainer", "trainer", "train", *(["--accept-changes"] if accept_changes else []), essential=True),
        command("dispatcher", "dispatcher", "dispatch"),
    ]
    commands += [
        command(
            f"generator-{number}",
            "generator",
            "generate",
            *("--id", str(number)),
            essential=bool(config.evaluation.every_steps) and str(number) == config.evaluation.generator,
        )
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
    figures: dict[str, object] = msgspec.to_builtins(summary)
    del figures["evaluations"]
    for name, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        console.print(
            f"{name:28} {shown if shown not in (None, {}) else '-'}", highlight=False, markup=False, soft_wrap=True
        )
    for score in summary.evaluations:
        console.print(f"{'evaluation':28} {score_line(score)}", highlight=False, markup=False, soft_wrap=True)
