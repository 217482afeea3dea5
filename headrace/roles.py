"""The roles as processes: each is built from the configuration, run until it ends or is asked to, and reported.

Exit codes: 0 finished or stopped on request, 1 an error with a message, 3 fenced (must not be restarted).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import secrets
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from bus import Address, Bus, WeightsStore, connect
from consumers.sinks import run_archive, run_dead, run_metrics
from environments import load_environment, load_tokenizer
from headrace.models import check_model
from producers import Admission, Dispatcher, Engine, Gate, Generator, Player, TaskSource, WeightsFeed
from schemas import CONTROL, ConfigError, Control, Fenced, HeadraceError, Role

from . import logs
from .config import RunConfig
from .folder import RunFolder

log = logging.getLogger("headrace.roles")
FAILED, FENCED = 1, 3


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
    return FENCED if isinstance(error, Fenced) else FAILED


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
    asyncio.run(_with_bus(config, address, "dispatcher", id, body))


def generate(config: RunConfig, address: Address, id: str, folder: RunFolder) -> None:
    """A generator: as many as there are machines for."""
    gate = _gate(config, _engine(config))

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
    asyncio.run(_with_bus(config, address, "generator", id, body))


def _gate(config: RunConfig, engine: Engine) -> Gate:
    return Gate(
        engine,
        temperature=config.policy.temperature,
        max_off_policy_steps=config.policy.max_off_policy_steps,
        abort_late=config.policy.stale == "drop",
        prefix_on_swap=config.generator.prefix_on_swap,
    )


def _engine(config: RunConfig) -> Engine:
    """The engine that ``generator.engine`` names. Raises ConfigError when there is none of that name."""
    name = config.generator.engine
    module, _, attribute = ("producers.generator.vllm_engine:VllmEngine" if name == "vllm" else name).partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"generator.engine {name!r} cannot be loaded ({error}): use vllm, or module:Class") from error
    # Generators must not sample alike, nor one that was started again repeat itself. What was sampled is in the log.
    seed = secrets.randbits(31)
    engine: Engine = kind(Path(config.model.path), config.generator, config.policy, config.weights.dtype, seed)
    return engine


async def _with_bus(
    config: RunConfig, address: Address, role: Role, id: str, body: Callable[[Bus, asyncio.Event], Awaitable[None]]
) -> None:
    """Run ``body`` on a connection; its event is set by SIGTERM, SIGINT, or a person's ``stop``."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    bus = await connect(address, run=config.run.name, role=role, id=id)
    await bus.verify_topology(config.log)
    listening = asyncio.create_task(stop_on_request(bus, stop.set))
    try:
        await body(bus, stop)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await bus.close()


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
    asyncio.run(_with_bus(config, address, "sink", kind, body))
