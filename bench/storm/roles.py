"""The processes of the storm: generators that share an event loop, a trainer that only collects, and the dispatcher.

python -m bench.storm.roles generators|trainer|dispatcher FOLDER STORE NUMBERS: until SIGTERM. Generators and dispatcher
are the real ones, with an engine that decodes nothing. The trainer assembles groups as the real one does, and commits,
puts and announces through the real ledger and the real store, but trains nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

from bench.plan.engine import PacedEngine
from bus import Address, Bus, BusRole, EmbeddedServer, Ledger, WeightsStore, connect, open_weights
from bus.settings import WeightsSettings
from consumers.trainer import Assembly
from environments import load_environment, load_tokenizer
from producers import Admission, Dispatcher, Gate, Generator, GeneratorSettings, Player, TaskSource, WeightsFeed
from schemas import ROLLOUTS, EnvironmentSettings, PolicySettings, Rollout, TrainedGroup, Weights
from tests import examples

RUN = "storm"
GROUP_SIZE, BOUND, STEPS = 4, 4, 10**6
SETTINGS = GeneratorSettings(concurrency=8, lease_s=6.0, metric_interval_s=2.0, max_model_len=128)
ENVIRONMENTS = [EnvironmentSettings(name="reverse", args={"length": 60, "letters": "abc"})]
WEIGHTS_BYTES = 1 << 20
LAG_S = 0.1
"""An event loop that is so much later than asked is busy: what it measures is itself."""


class LightEngine(PacedEngine):
    """Four tokens a second, so that hundreds fit on one machine: a rollout takes 6 s."""

    token_s, request_s = 0.25, 0.0


def groups_per_step(generators: int) -> int:
    """With all that may be open, half of the generators' places have a group."""
    return max(2, generators // (BOUND + 1))


def address(folder: Path, role: BusRole) -> Address:
    found = EmbeddedServer.find(folder / "nats")
    assert found is not None, "the server is gone"
    return found[role]


def store_of(bus: Bus, folder: Path, kind: str, id: str) -> WeightsStore:
    settings = WeightsSettings(store="jetstream" if kind == "jetstream" else "file", keep=4)
    return open_weights(bus, settings, shared=folder / "weights", cache=folder / "cache" / id)


async def generators(folder: Path, kind: str, first: int, count: int, stop: asyncio.Event) -> None:
    """``count`` generators, each with a connection of its own."""
    lagging = asyncio.create_task(_tell_lag())
    async with asyncio.TaskGroup() as group:
        for number in range(first, first + count):
            group.create_task(generator(folder, kind, number, stop))
    lagging.cancel()


async def generator(folder: Path, kind: str, number: int, stop: asyncio.Event) -> None:
    bus = await connect(address(folder, "generator"), run=RUN, role="generator", id=str(number), timeout_s=60.0)
    engine = LightEngine(folder / "tiny", SETTINGS, PolicySettings(), "float32", number)
    gate = Gate(engine, temperature=1.0, max_off_policy_steps=BOUND, abort_late=True, prefix_on_swap="keep")
    environments = {each.name: load_environment(each, seed=0) for each in ENVIRONMENTS}
    player = Player(
        gate, load_tokenizer(folder / "tiny"), environments, max_tokens=SETTINGS.max_model_len, play_timeout_s=300.0,
        retries=0,
    )  # fmt: skip
    feed = WeightsFeed(bus, store_of(bus, folder, kind, str(number)))
    try:
        await Generator(bus, gate, feed, player, SETTINGS, group_size=GROUP_SIZE, steps=STEPS).run(stop)
    finally:
        await bus.close()


async def trainer(folder: Path, kind: str, count: int, stop: asyncio.Event) -> None:
    """Commits as fast as groups are complete."""
    bus = await connect(address(folder, "trainer"), run=RUN, role="trainer", id="trainer")
    store, ledger = store_of(bus, folder, kind, "trainer"), Ledger(bus, secrets.token_hex(8))
    await ledger.open()
    await _announce(bus, store, ledger, 0)
    consumer = await bus.consumer(ROLLOUTS, "trainer", ack="all", ack_wait_s=3600.0)
    assembly, version = Assembly(GROUP_SIZE), 0
    while not stop.is_set():
        deliveries = await consumer.fetch(500, 0.5)
        for delivery in deliveries:
            if isinstance(delivery.event, Rollout):
                assembly.add(delivery.sequence, delivery.event)
        complete = assembly.complete()
        wanted = groups_per_step(count)
        while len(complete) >= wanted and not stop.is_set():
            version += 1
            batch, complete = complete[:wanted], complete[wanted:]
            groups = [
                TrainedGroup(
                    group=each.number, env="reverse", sequences=[member.sequence for member in each.in_order()],
                    rewards=[member.rollout.reward for member in each.in_order()],
                    advantages=[None if member.rollout.reward is None else 0.0 for member in each.in_order()],
                    left_out={
                        str(number): "error"
                        for number, member in enumerate(each.in_order())
                        if member.rollout.reward is None
                    },
                )
                for each in batch
            ]  # fmt: skip
            trained = sum(advantage is not None for group in groups for advantage in group.advantages)
            await ledger.append(
                examples.step(run=RUN, number=version, groups=groups, packing=[[list(range(trained))]], left_out={},
                              left_out_tokens={})
            )  # fmt: skip
            for each in batch:
                assembly.settle(each.number)
            await _announce(bus, store, ledger, version)
        if deliveries:
            await deliveries[-1].ack()
    await bus.close()


async def _announce(bus: Bus, store: WeightsStore, ledger: Ledger, version: int) -> None:
    payload = hashlib.sha256(str(version).encode()).digest() * (WEIGHTS_BYTES // 32)
    stored = await store.put(payload, version=version)
    await ledger.append(
        Weights(
            run=RUN, version=version, sha256=stored.sha256, size_bytes=stored.size_bytes, location=stored.location,
            dtype="float32",
        )
    )  # fmt: skip
    await store.prune()


async def dispatcher(folder: Path, count: int, stop: asyncio.Event) -> None:
    bus = await connect(address(folder, "dispatcher"), run=RUN, role="dispatcher", id="0")
    tasks = TaskSource(ENVIRONMENTS, run=RUN, seed=0, group_size=GROUP_SIZE)
    admission = Admission(max_off_policy_steps=BOUND, groups_per_step=groups_per_step(count), steps=STEPS)
    await Dispatcher(bus, tasks, admission, metric_interval_s=2.0).run(stop)
    await bus.close()


async def _tell_lag() -> None:
    """Log how late this event loop is: then the storm's own processes are what breaks."""
    loop = asyncio.get_running_loop()
    while True:
        asked = loop.time()
        await asyncio.sleep(1.0)
        if (late_s := loop.time() - asked - 1.0) > LAG_S:
            logging.getLogger("bench.storm").info("event loop late by %.2f s", late_s)


async def until_stopped(body: Coroutine[None, None, None], stop: asyncio.Event) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await body


def main(words: list[str]) -> None:
    role, folder, kind, *numbers = words
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("headrace.generator").setLevel(logging.WARNING)
    sizes, stop, place = [int(number) for number in numbers], asyncio.Event(), Path(folder)
    body = {
        "generators": lambda: generators(place, kind, sizes[0], sizes[1], stop),
        "trainer": lambda: trainer(place, kind, sizes[0], stop),
        "dispatcher": lambda: dispatcher(place, sizes[0], stop),
    }[role]
    asyncio.run(until_stopped(body(), stop))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
