"""The roles as processes: each is built from the configuration, run until it ends or is asked to, and reported.

Exit codes: 0 finished, or stopped by ``headrace stop``; 1 an error with a message; 3 fenced, or the run itself is
wrong (must not be started again); 4 no NATS server could be reached (is tried again); 143 and 130 ended by SIGTERM and
SIGINT, in order, but with the run unfinished: whoever did not mean it starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

from bus import Address, Bus, WeightsStore, connect
from consumers.sinks import run_archive, run_dead, run_metrics
from environments import load_environment, load_tokenizer
from headrace.models import check_model
from producers import Admission, Dispatcher, Engine, Gate, Generator, Player, TaskSource, WeightsFeed
from schemas import CONTROL, Control, Fenced, HeadraceError, Role, RunError, ServerUnreachable

from . import logs
from .config import RunConfig
from .engine import build_engine
from .folder import RunFolder

log = logging.getLogger("headrace.roles")
FAILED, FINAL, UNREACHABLE = 1, 3, 4


def run_role(body: Callable[[], None]) -> int:
    """Run one role; returns the exit code. A fault with a message gets one line, any other a stack trace."""
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
        case Fenced() | RunError():
            return FINAL
        case ServerUnreachable():
            return UNREACHABLE
    return FAILED


def dispatch(config: RunConfig, address: Address, id: str) -> None:
    """The dispatcher: one for a run; a second one does no harm."""

    async def body(bus: Bus, stop: asyncio.Event) -> None:
        tasks = TaskSource(
            config.environments, run=config.run.name, seed=config.run.seed, group_size=config.trainer.group_size
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
    """A generator: as many as there are machines for."""
    gate = _gate(config, build_engine(config))

    async def body(bus: Bus, stop: asyncio.Event) -> None:
        player = Player(
            gate,
            load_tokenizer(Path(config.model.path)),
            {each.name: load_environment(each, seed=config.run.seed) for each in config.environments},
            max_tokens=config.generator.max_model_len,
            play_timeout_s=config.generator.play_timeout_s,
            retries=config.generator.retries,
        )
        feed = WeightsFeed(bus, WeightsStore(folder.weights, config.weights.keep))
        settings, size, steps = config.generator, config.trainer.group_size, config.run.steps
        await Generator(bus, gate, feed, player, settings, group_size=size, steps=steps).run(stop)

    logs.configure(config.run.name, f"generator/{id}", lambda: gate.version)
    check_model(Path(config.model.path))
    _run(_with_bus(config, address, "generator", id, body))


def _gate(config: RunConfig, engine: Engine) -> Gate:
    return Gate(
        engine,
        temperature=config.policy.temperature,
        max_off_policy_steps=config.policy.max_off_policy_steps,
        abort_late=config.policy.stale == "drop",
        prefix_on_swap=config.generator.prefix_on_swap,
    )


def _run(role: Coroutine[None, None, int | None]) -> None:
    """Raises SystemExit where a signal ended the role."""
    if number := asyncio.run(role):
        raise SystemExit(128 + number)


async def _with_bus(
    config: RunConfig, address: Address, role: Role, id: str, body: Callable[[Bus, asyncio.Event], Awaitable[None]]
) -> int | None:
    """Run ``body`` on a connection; its event is set by SIGTERM, SIGINT, or a person's ``stop``.

    Returns the signal, if one came.
    """
    stop, signals = asyncio.Event(), list[int]()

    def on_signal(number: int) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    bus = await connect(address, run=config.run.name, role=role, id=id)
    await bus.verify_topology(config.log)
    listening = asyncio.create_task(stop_on_request(bus, stop.set))
    try:
        await body(bus, stop)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await bus.close()
    return signals[0] if signals else None


async def stop_on_request(bus: Bus, stop: Callable[[], None]) -> None:
    """Call ``stop`` when a person asks for it from now on; earlier requests were for earlier processes."""
    start = (await bus.state(CONTROL)).last_sequence + 1
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
