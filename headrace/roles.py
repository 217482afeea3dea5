"""The roles as processes: each is built from the configuration, run until it ends or is asked to, and reported.

Exit codes: 0 finished, or stopped by ``headrace stop``; 1 an error with a message; 3 fenced, or the run or its log
is wrong (must not be started again); 4 no NATS server could be reached (is tried again); 143 and 130 ended by SIGTERM
and SIGINT, in order, but with the run unfinished: whoever did not mean it starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bus import Address, Bus, Unanswered, connect, keep_freed_memory, open_run_files, open_weights
from consumers.sinks import run_archive, run_dead, run_metrics
from environments import Environment, load_environment, load_tokenizer
from headrace.models import check_model
from producers import Admission, Dispatcher, Engine, Evaluator, Gate, Generator, Player, TaskSource, WeightsFeed
from schemas import (
    CONTROL,
    ConfigError,
    Control,
    EnvironmentFault,
    Fenced,
    HeadraceError,
    LogGap,
    Role,
    RunError,
    ServerUnreachable,
)

from . import config as configuration
from . import heartbeat, logs
from .config import RunConfig
from .engine import build_engine
from .folder import RunFolder
from .message_size import require_room_for_rollouts

T = TypeVar("T")
log = logging.getLogger("headrace.roles")
FAILED, FINAL, UNREACHABLE = 1, 3, 4
LEAVE_S = 3.0
"""Time for what is left of a role once it has ended: who ends it waits some seconds."""


def run_role(body: Callable[[], None]) -> int:
    """Run one role; returns the exit code. A fault with a message gets one line, any other a stack trace."""
    keep_freed_memory()
    try:
        body()
    except HeadraceError as error:
        return _report(error)
    except BaseExceptionGroup as group:
        told, others = group.split(HeadraceError)
        if told is None or others is not None:
            raise
        return _report(_first(told))
    return 0


def _first(group: BaseExceptionGroup[HeadraceError]) -> HeadraceError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _report(error: HeadraceError) -> int:
    log.error("%s", error)
    match error:
        case Fenced() | RunError() | LogGap():
            return FINAL
        case ServerUnreachable() | Unanswered():
            return UNREACHABLE
    return FAILED


def dispatch(config: RunConfig, address: Address, id: str) -> None:
    """The dispatcher: one for a run; a second one does no harm."""

    async def body(bus: Bus, stop: asyncio.Event) -> None:
        evaluated = config.evaluation.evaluated(each.name for each in config.environments)
        tasks = TaskSource(
            config.environments,
            run=config.run.name,
            seed=config.run.seed,
            group_size=config.trainer.group_size,
            held_out=dict.fromkeys(evaluated, config.evaluation.held_out),
        )
        admission = Admission(
            max_off_policy_steps=config.policy.max_off_policy_steps,
            groups_per_step=config.trainer.groups_per_step,
            steps=config.run.steps,
        )
        interval_s = config.generator.metric_interval_s
        await Dispatcher(bus, tasks, admission, metric_interval_s=interval_s).run(stop)

    logs.configure(config.run.name, f"dispatcher/{id}", lambda: None)
    _run(_with_bus(config, address, "dispatcher", id, body))


def generate(config: RunConfig, address: Address, id: str, folder: RunFolder) -> None:
    """A generator: as many as there are machines for. Where the model is not on this one, it takes the run's."""
    model = Path(config.model.path)
    # What was taken before is looked at again: its taking may have been cut short.
    fetches = config.weights.store == "jetstream" and (model == folder.model or not model.exists())
    if fetches:
        config = _with_model(config, folder.model)
    gate = _gate(config, build_engine(config))

    async def body(bus: Bus, stop: asyncio.Event) -> None:
        require_room_for_rollouts(bus, config)
        if fetches:
            await _before(stop, open_run_files(bus).fetch_model(folder.model))
            if stop.is_set():
                return
        check_model(Path(config.model.path), tokens=config.generator.max_model_len)
        environments = {each.name: load_environment(each, seed=config.run.seed) for each in config.environments}
        player = _player(config, gate, environments)
        evaluator = _evaluator(config, bus, gate) if id == config.evaluation.generator else None
        store = open_weights(bus, config.weights, shared=folder.weights, cache=folder.cache(f"generator-{id}"))
        feed = WeightsFeed(bus, store, due=None if evaluator is None else evaluator.due)
        settings, size, steps = config.generator, config.trainer.group_size, config.run.steps
        generator = Generator(bus, gate, feed, player, settings, group_size=size, steps=steps, evaluator=evaluator)
        await generator.run(stop)

    logs.configure(config.run.name, f"generator/{id}", lambda: gate.version)
    if not fetches:
        check_model(Path(config.model.path), tokens=config.generator.max_model_len)  # before anything is connected
    _run(_with_bus(config, address, "generator", id, body))


def _player(config: RunConfig, gate: Gate, environments: dict[str, Environment]) -> Player:
    return Player(
        gate,
        load_tokenizer(Path(config.model.path)),
        environments,
        max_tokens=config.generator.max_model_len,
        play_timeout_s=config.generator.play_timeout_s,
        retries=config.generator.retries,
    )


def _evaluator(config: RunConfig, bus: Bus, gate: Gate) -> Evaluator | None:
    """Who plays the run's evaluations; None where it has none."""
    settings = config.evaluation
    names = settings.evaluated(each.name for each in config.environments)
    environments = {
        each.name: load_environment(each, seed=settings.seed) for each in config.environments if each.name in names
    }
    if not environments:
        return None
    player = _player(config, gate, environments)
    steps, concurrency = config.run.steps, config.generator.concurrency
    return Evaluator(bus, gate, player, environments, settings, steps=steps, concurrency=concurrency)


def join(run: str, address: Address, id: str, folder: RunFolder, overrides: Sequence[str]) -> RunConfig:
    """The configuration that the trainer of ``run`` has put into NATS, for a generator that has none of its own.

    ``overrides``: keys of [generator], on top of it. Waits for the trainer, with a log line each 10 s.
    Raises StreamMismatch where weights of the run do not travel through NATS, ConfigError, and SystemExit where a
    signal ends the wait.
    """
    taken: list[RunConfig] = []

    async def body(bus: Bus, stop: asyncio.Event) -> None:
        async def take() -> None:
            payload = await open_run_files(bus).config()
            taken.append(configuration.received(payload, f"run {run!r}", overrides))

        await _before(stop, take())

    logs.configure(run, f"generator/{id}", lambda: None)
    _run(_connected(run, address, "generator", id, body))
    if taken[0].run.name != run:
        raise ConfigError(
            f"the configuration in NATS is of run {taken[0].run.name!r}, not {run!r}: start its trainer again"
        )
    return _with_model(taken[0], folder.model)  # What lies at the trainer's path here is another machine's business.


def _with_model(config: RunConfig, model: Path) -> RunConfig:
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, path=str(model)))


async def _before(stop: asyncio.Event, act: Coroutine[None, None, T]) -> T | None:
    """What ``act`` returns; None where ``stop`` is set before it is done."""
    acting, stopping = asyncio.ensure_future(act), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({acting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return acting.result() if acting.done() else None
    finally:
        acting.cancel()
        stopping.cancel()
        await asyncio.gather(acting, stopping, return_exceptions=True)


def _gate(config: RunConfig, engine: Engine) -> Gate:
    return Gate(
        engine,
        temperature=config.policy.temperature,
        max_off_policy_steps=config.policy.max_off_policy_steps,
        abort_late=config.policy.stale == "drop",
        prefix_on_swap=config.generator.prefix_on_swap,
    )


def _run(role: Coroutine[None, None, int | None]) -> None:
    """Raises SystemExit where a signal ended the role, EnvironmentFault where an environment did."""
    loop = asyncio.new_event_loop()
    try:
        number = loop.run_until_complete(role)
    except SystemExit as error:  # Its code may be 0, and then nobody would start the role again.
        raise EnvironmentFault(f"a task that an environment had started called sys.exit({error.code!r})") from error
    finally:
        _end(loop)
    if number:
        raise SystemExit(128 + number)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """What ``asyncio.run`` does at its end, in bounded time.

    An environment's code may have kept a task although it was cancelled, or a thread that never returns: these end
    with the process.
    """
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with contextlib.suppress(SystemExit):  # of another such task
            loop.run_until_complete(asyncio.wait(tasks, timeout=LEAVE_S))
    loop.close()


async def _with_bus(
    config: RunConfig, address: Address, role: Role, id: str, body: Callable[[Bus, asyncio.Event], Awaitable[None]]
) -> int | None:
    """Run ``body`` on a connection to a run whose streams are as configured; see ``_connected``.

    Its event is set by a person's ``stop`` as well.
    """

    async def watched(bus: Bus, stop: asyncio.Event) -> None:
        async def verified() -> int:
            await bus.verify_topology(config.log, config.weights)
            return await next_request(bus)

        if (start := await _before(stop, verified())) is None:
            return
        listening = asyncio.create_task(stop_on_request(bus, stop.set, start=start))
        try:
            await body(bus, stop)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    return await _connected(config.run.name, address, role, id, watched)


async def _connected(
    run: str, address: Address, role: Role, id: str, body: Callable[[Bus, asyncio.Event], Awaitable[None]]
) -> int | None:
    """Run ``body`` on a connection; its event is set by SIGTERM and SIGINT. Returns the signal, if one came."""
    stop, signals = asyncio.Event(), list[int]()

    def on_signal(number: int) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    if (bus := await _before(stop, connect(address, run=run, role=role, id=id))) is None:
        return signals[0]
    beating = asyncio.create_task(heartbeat.keep_beating(lambda: bus.connected))
    try:
        await body(bus, stop)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await bus.close()
    return signals[0] if signals else None


async def next_request(bus: Bus) -> int:
    """Sequence of the first request in CONTROL that will be for this process: those before were for earlier ones."""
    return (await bus.state(CONTROL)).last_sequence + 1


async def stop_on_request(bus: Bus, stop: Callable[[], None], *, start: int) -> None:
    """Call ``stop`` when a person asks for it, or has done so from request ``start`` on."""
    async for logged in bus.read(CONTROL, kinds=(Control,), start=start, follow=True):
        if isinstance(logged.event, Control) and logged.event.action == "stop":
            stop()


def sink(config: RunConfig, address: Address, kind: str, folder: RunFolder) -> None:
    """A sink: ``metrics``, ``archive`` or ``dead``."""

    async def body(bus: Bus, stop: asyncio.Event) -> None:
        match kind:
            case "metrics":
                await run_metrics(bus, config.metrics, stop)
            case "archive":
                await run_archive(bus, folder.archive, stop)
            case "dead":
                await run_dead(bus, stop)

    logs.configure(config.run.name, f"sink/{kind}", lambda: None)
    _run(_with_bus(config, address, "sink", kind, body))
