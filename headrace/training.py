"""The trainer as a process: NATS on its own thread, steps on the main one."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bus import Address, Bus, BusThread, Ledger, Telemetry, WeightsStore
from consumers.trainer import (
    Interrupt,
    Interrupted,
    Learner,
    Provenance,
    Publication,
    Rules,
    Trainer,
    check_takeover,
    cpu_features,
    library_versions,
)
from headrace.models import check_model
from schemas import ROLLOUTS

from . import logs
from .config import RunConfig, digest, store
from .folder import RunFolder
from .roles import stop_on_request

log = logging.getLogger("headrace.trainer")
CONSUMER = "trainer"
ACK_WAIT_S = 3600.0
"""The ledger is the cursor; acknowledgements only show people how far it is. A late one must not bring redelivery."""
CALL_TIMEOUT_S = 60.0


def train(config: RunConfig, address: Address, folder: RunFolder) -> None:
    """Train until the run's last step is committed, or until asked to end: SystemExit where a signal asks."""
    version: int | None = None

    def on_version(announced: int) -> None:
        nonlocal version
        version = announced

    stopped = False

    def on_stop() -> None:
        nonlocal stopped
        stopped = True
        os.kill(os.getpid(), signal.SIGTERM)  # The main thread may be anywhere: this interrupts it.

    logs.configure(config.run.name, f"trainer/{config.trainer.instance}", lambda: version)
    check_model(Path(config.model.path))
    if not folder.exists:  # `headrace up` has made it; a trainer on its own does
        folder.make()
        store(config, folder.path)
    interrupt = Interrupt()
    interrupt.install()
    try:
        with _bus_thread(config, address) as thread:
            trainer = _build(config, thread, folder, interrupt)
            with _telling(thread, trainer, config, on_stop):
                trainer.run(on_version)
    except Interrupted:
        log.info("asked to end: the step that was under way is abandoned")
        if interrupt.number and not stopped:
            raise SystemExit(128 + interrupt.number) from None


@contextmanager
def _bus_thread(config: RunConfig, address: Address) -> Iterator[BusThread]:
    thread = BusThread(address, run=config.run.name, role="trainer", id=config.trainer.instance)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def _build(config: RunConfig, thread: BusThread, folder: RunFolder, interrupt: Interrupt) -> Trainer:
    thread.call(lambda bus: bus.verify_topology(config.log), CALL_TIMEOUT_S)
    thread.call(lambda bus: check_takeover(bus, config.trainer.instance, time.time()), CALL_TIMEOUT_S)
    publication = Publication(
        thread,
        thread.call(_open_ledger, CALL_TIMEOUT_S),
        WeightsStore(folder.weights, config.weights.keep),
        run=config.run.name,
        instance=config.trainer.instance,
        dtype=config.weights.dtype,
    )
    return Trainer(
        thread,
        build_learner(config, folder.checkpoints),
        publication,
        lambda start: thread.inbox(ROLLOUTS, CONSUMER, ack="all", ack_wait_s=ACK_WAIT_S, start=start),
        config.trainer,
        rules(config),
        Provenance(
            config_digest=digest(config), seed=config.run.seed, libraries=library_versions(), cpu=cpu_features()
        ),
        run=config.run.name,
        steps=config.run.steps,
        purges=config.log.keep == "checkpoints",
        vocabulary=check_model(Path(config.model.path)).vocabulary,
        interrupt=interrupt,
    )


def rules(config: RunConfig) -> Rules:
    """What decides what a step trains."""
    return Rules(
        max_off_policy_steps=config.policy.max_off_policy_steps,
        stale=config.policy.stale,
        advantage=config.trainer.advantage,
        row_tokens=config.trainer.row_tokens,
    )


def build_learner(config: RunConfig, checkpoints: Path) -> Learner:
    """What learns, with its checkpoints in a folder."""
    # Loads torch and torchtitan: about ten seconds, which only a trainer should pay.
    from consumers.trainer.titan import Learner as TitanLearner

    return TitanLearner(
        Path(config.model.path),
        config.trainer,
        temperature=config.policy.temperature,
        dtype=config.weights.dtype,
        seed=config.run.seed,
        steps=config.run.steps,
        checkpoints=checkpoints,
    )


async def _open_ledger(bus: Bus) -> Ledger:
    """The ledger to continue."""
    ledger = Ledger(bus, secrets.token_hex(8))
    await ledger.open()
    return ledger


@contextmanager
def _telling(thread: BusThread, trainer: Trainer, config: RunConfig, on_stop: Callable[[], None]) -> Iterator[None]:
    """Telemetry, and a person's ``stop``, while the trainer runs."""

    async def begin(bus: Bus) -> tuple[Telemetry, asyncio.Task[None]]:
        telemetry = Telemetry(bus, lambda: trainer.gauges, interval_s=config.generator.metric_interval_s)
        await telemetry.__aenter__()
        telemetry.ready()
        end = asyncio.create_task(stop_on_request(bus, on_stop))
        return telemetry, end

    telemetry, listening = thread.call(begin, CALL_TIMEOUT_S)

    async def end(_: Bus) -> None:
        listening.cancel()
        await telemetry.__aexit__(None, None, None)

    try:
        yield
    finally:
        thread.call(end, CALL_TIMEOUT_S)
