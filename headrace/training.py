"""The trainer as a process: NATS on its own thread, steps on the main one."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from bus import Address, Bus, BusThread, Ledger, Telemetry, open_run_files, open_weights, stream_config
from consumers.trainer import (
    RANK_LOST,
    Interrupt,
    Interrupted,
    Learner,
    Provenance,
    Publication,
    RankedLearner,
    RankLost,
    Rules,
    Trainer,
    check_loss,
    check_takeover,
    cpu_features,
    device_name,
    follow,
    library_versions,
)
from headrace.models import check_model, make_model
from schemas import LEDGER, ROLLOUTS, Weights

from . import heartbeat, logs
from .children import tied_to
from .config import RunConfig, digest, encoded, store
from .continuation import check_unchanged_since_step, finished
from .folder import RunFolder
from .launch import own_rank
from .roles import next_request, stop_on_request

log = logging.getLogger("headrace.trainer")
CONSUMER = "trainer"
ACK_WAIT_S = 3600.0
"""The ledger is the cursor; acknowledgements only show people how far it is. A late one must not bring redelivery."""
CALL_TIMEOUT_S = 60.0


def train(config: RunConfig, address: Address, folder: RunFolder, *, accept_changes: bool = False) -> None:
    """Train until the run's last step is committed, or until asked to end: SystemExit where a signal asks.

    Where this process is one of several ranks, that is what rank 0 does, and the others help it.
    Raises RunError where the configuration is another one than the run's, unless ``accept_changes``.
    """
    rank = own_rank(config.trainer)
    if rank is None or config.trainer.ranks == 1:
        _lead(config, address, folder, partial(build_learner, config, folder.checkpoints), accept_changes)
        return
    logs.configure(config.run.name, f"trainer/{config.trainer.instance}/rank-{rank}", lambda: None)
    tied_to(os.getppid())()  # Headrace's own launcher has done that already, torchrun has not.
    from consumers.trainer.titan import Lockstep  # loads torch

    with Lockstep() as ranks:
        build = partial(_learner_of_rank, config, folder.checkpoints)
        if rank > 0:
            follow(build, ranks)
        else:
            together = partial(RankedLearner, build, ranks, data_parallel=config.trainer.data_parallel)
            _lead(config, address, folder, together, accept_changes)


def _lead(
    config: RunConfig, address: Address, folder: RunFolder, build: Callable[[], Learner], accept_changes: bool
) -> None:
    """Be the trainer: rank 0, or the only one. ``build`` makes its learner."""
    version: int | None = None
    stopped = False

    def on_stop() -> None:
        nonlocal stopped
        stopped = True
        os.kill(os.getpid(), signal.SIGTERM)  # The main thread may be anywhere: this interrupts it.

    logs.configure(config.run.name, f"trainer/{config.trainer.instance}", lambda: version)
    interrupt = Interrupt()
    interrupt.install()
    check_loss(config.trainer.loss, config.trainer.loss_args, config.trainer.loss_settings)
    try:
        with _bus_thread(config, address) as thread:
            if not _has_steps_left(config, thread, folder, accept_changes):
                return
            requests = thread.call(next_request, CALL_TIMEOUT_S)  # so early, because loading the model takes long
            # `headrace up` has made model and folder; a trainer on its own does.
            make_model(config.model, tokens=config.generator.max_model_len, say=log.info)
            folder.make()
            store(config, folder.path)
            begun = thread.call(lambda bus: bus.last(LEDGER, Weights), CALL_TIMEOUT_S) is not None
            if not begun:  # So early, because generators load the model while the trainer loads its own.
                _put_run_files(config, thread)

            def on_version(announced: int) -> None:
                nonlocal version
                if begun and version is None:  # Only now is it known to be the model that the run started from.
                    _put_run_files(config, thread)
                version = announced

            publication = _publication(config, thread, folder)
            trainer = _build(config, thread, publication, interrupt, build())
            with _telling(thread, trainer, publication, config, partial(stop_on_request, stop=on_stop, start=requests)):
                _run(trainer, interrupt, on_version)
    except Interrupted:
        log.info("asked to end: the step that was under way is abandoned")
        if interrupt.number and not stopped:
            raise SystemExit(128 + interrupt.number) from None


def _run(trainer: Trainer, interrupt: Interrupt, on_version: Callable[[int], None]) -> None:
    try:
        trainer.run(on_version)
    except Interrupted:
        if interrupt.number == RANK_LOST:
            raise RankLost("another rank has failed: all end, and go on from the last checkpoint and the log") from None
        raise


@contextmanager
def _bus_thread(config: RunConfig, address: Address) -> Iterator[BusThread]:
    thread = BusThread(address, run=config.run.name, role="trainer", id=config.trainer.instance)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def _has_steps_left(config: RunConfig, thread: BusThread, folder: RunFolder, accept_changes: bool) -> bool:
    """Whether there is something to train here, said before torch is loaded.

    Raises StreamMismatch, RunError where the configuration has changed, and Fenced where another trainer is alive.
    """

    async def check(bus: Bus) -> str | None:
        await bus.verify_topology(config.log, config.weights)
        if not accept_changes:
            await check_unchanged_since_step(bus, config, folder)
        if (words := await finished(bus, config, folder.checkpoints)) is None:
            await check_takeover(bus, config.trainer.instance, time.time())
        return words

    words = thread.call(check, CALL_TIMEOUT_S)
    if words is not None:
        log.info("%s", words)
    return words is None


def _put_run_files(config: RunConfig, thread: BusThread) -> None:
    """Let generators that share nothing with us take model and configuration from NATS."""
    if config.weights.store == "jetstream":
        model, payload = Path(config.model.path), encoded(config)
        for name in thread.call(lambda bus: open_run_files(bus).put(model, payload), None):
            log.info("%s is put into NATS", name)


def _publication(config: RunConfig, thread: BusThread, folder: RunFolder) -> Publication:
    return Publication(
        thread,
        thread.call(_ledger, CALL_TIMEOUT_S),
        open_weights(
            thread.bus,
            config.weights,
            shared=folder.weights,
            cache=folder.cache("trainer"),
            stays=partial(config.evaluation.due, last=config.run.steps),
        ),
        run=config.run.name,
        dtype=config.weights.dtype,
        whole_every=config.weights.whole_every,
    )


def _build(
    config: RunConfig, thread: BusThread, publication: Publication, interrupt: Interrupt, learner: Learner
) -> Trainer:
    return Trainer(
        thread,
        learner,
        publication,
        lambda start: thread.inbox(ROLLOUTS, CONSUMER, ack="all", ack_wait_s=ACK_WAIT_S, start=start),
        config.trainer,
        rules(config),
        Provenance(
            config_digest=digest(config),
            seed=config.run.seed,
            libraries=library_versions(),
            cpu=cpu_features(),
            device=device_name(),
        ),
        run=config.run.name,
        steps=config.run.steps,
        purges=config.log.keep == "checkpoints",
        log_limit_bytes=stream_config(ROLLOUTS, config.run.name, config.log, config.weights)["max_bytes"],
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
        truncated=config.trainer.truncated,
        too_long=config.trainer.too_long,
    )


def build_learner(config: RunConfig, checkpoints: Path) -> Learner:
    """What learns, in this process alone, with its checkpoints in a folder."""
    alone = msgspec.structs.replace(config.trainer, data_parallel=1, tensor_parallel=1, context_parallel=1)
    return _learner_of_rank(msgspec.structs.replace(config, trainer=alone), checkpoints)


def _learner_of_rank(config: RunConfig, checkpoints: Path) -> Learner:
    """What learns in this process, together with the other ranks where there are some."""
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


async def _ledger(bus: Bus) -> Ledger:
    """The ledger to continue, by a writer that there was none of before."""
    return Ledger(bus, secrets.token_hex(8))


@contextmanager
def _telling(
    thread: BusThread,
    trainer: Trainer,
    publication: Publication,
    config: RunConfig,
    listen: Callable[[Bus], Coroutine[None, None, None]],
) -> Iterator[None]:
    """While the trainer runs: telemetry, ``listen`` for a person's ``stop``, and weights that no generator can make."""

    async def begin(bus: Bus) -> tuple[Telemetry, list[asyncio.Task[None]]]:
        telemetry = Telemetry(bus, lambda: trainer.gauges, interval_s=config.generator.metric_interval_s)
        await telemetry.__aenter__()
        telemetry.ready()
        listening = asyncio.create_task(listen(bus))
        beating = asyncio.create_task(heartbeat.keep_beating(lambda: bus.connected))
        mending = asyncio.create_task(publication.mend_on_demand(bus))
        return telemetry, [listening, beating, mending]

    telemetry, tasks = thread.call(begin, CALL_TIMEOUT_S)

    failure: Exception | None = None

    async def end(_: Bus) -> None:
        for task in tasks:
            task.cancel()
        await telemetry.__aexit__(None if failure is None else type(failure), failure, None)

    try:
        yield
    except Exception as error:
        failure = error
        raise
    finally:
        thread.call(end, CALL_TIMEOUT_S)
