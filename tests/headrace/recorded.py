"""Runs that were never played: folders with a log of example events, as a real run leaves them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bus import Bus, EmbeddedServer, FileWeights, connect
from bus.settings import LogSettings, WeightsSettings
from headrace import config as configuration
from headrace.config import RunConfig
from headrace.folder import RunFolder
from headrace.models.characters import END, character_tokenizer, save_tokenizer
from schemas import EnvironmentSettings, Event, ModelSettings, RunSettings, Span, Step, Turn, Weights
from tests import examples

STEPS = 3
GROUPS, MEMBERS = 2, 3
METRICS = {
    "loss": -0.01, "reward_mean": 0.5, "rewards": 6.0, "staleness_max": 2.0, "staleness_mean": 1.25, "lr": 5e-4,
    "rollouts_held": 4.0, "trained_tokens": 36.0, "wait_s": 0.5, "train_s": 0.25, "rollouts_trained": 6.0,
}  # fmt: skip


def make_model(folder: Path) -> Path:
    """A directory with a tokenizer and a configuration, as far as nobody needs its weights."""
    folder.mkdir(parents=True)
    save_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}))
    (folder / "model.safetensors").write_bytes(b"the weights that the run began with")
    return folder


def payload_of(version: int) -> bytes:
    return f"weights {version}".encode()


def make_run(parent: Path, name: str = "demo", *, steps: int = STEPS, committed: int = STEPS) -> RunFolder:
    """A run that ended after step ``committed`` of ``steps``."""
    folder = prepare(parent, name, steps=steps)
    add(folder, [*weights_of(folder, committed), *events(name, committed)])
    return folder


def add(folder: RunFolder, log: Sequence[Event]) -> None:
    """Add events to the log of a run that does not go on."""
    server = EmbeddedServer.start(folder.nats)
    try:
        asyncio.run(record(server, folder.name, log))
    finally:
        server.stop()


def prepare(parent: Path, name: str, *, steps: int = STEPS) -> RunFolder:
    """A run's folder with its configuration."""
    folder = RunFolder(parent / name)
    folder.path.mkdir(parents=True)
    model = parent / "models" / "tiny"
    if not model.exists():
        make_model(model)
    config = RunConfig(
        run=RunSettings(name=name, steps=steps),
        model=ModelSettings(path=str(model)),
        environments=[EnvironmentSettings(name="reverse")],
    )
    configuration.store(config, folder.path)
    return folder


async def record(server: EmbeddedServer, name: str, log: Sequence[Event]) -> None:
    """Publish ``log`` into the run's streams, which are made if they are missing."""
    bus = await connect(server.address("admin"), run=name, role="admin", id="recorder")
    try:
        await bus.apply_topology(LogSettings(), WeightsSettings())
        for event in in_order(log):
            await bus.publish(event)
    finally:
        await bus.close()


def in_order(log: Sequence[Event]) -> Iterator[Event]:
    """Weights behind the step that made them, as a trainer announces them; all else as it is."""
    steps = {event.number for event in log if isinstance(event, Step)}
    made = {event.version: event for event in log if isinstance(event, Weights) and event.version in steps}
    for event in log:
        if not isinstance(event, Weights) or event.version not in made:
            yield event
        if isinstance(event, Step) and event.number in made:
            yield made[event.number]


async def publish(bus: Bus, *log: Event) -> None:
    for event in log:
        await bus.publish(event)


def weights_of(folder: RunFolder, committed: int) -> list[Weights]:
    """Weights events whose files are stored; version 0 has been pruned since."""
    store, announced = FileWeights(folder.weights, committed), []
    for version in range(committed + 1):
        stored = asyncio.run(store.put(payload_of(version), version=version))
        announced.append(
            examples.weights(run=folder.name, version=version, **msgspec.structs.asdict(stored), dtype="float32")
        )
    asyncio.run(store.prune())
    return announced


def events(run: str, committed: int) -> list[Event]:
    """Two roles that begin, two groups that are played, the steps, and the roles' ends."""
    ids = character_tokenizer().encode(f"rev:abc=cba{END}").ids
    swaps = [
        examples.lifecycle(run=run, version=version, details={"pause_s": 0.1 * (version + 1)})
        for version in range(committed + 1)
    ]
    return [
        examples.lifecycle(run=run, role="trainer", id="trainer", state="started", pid=11, version=None, details={}),
        examples.lifecycle(run=run, state="started", pid=12, version=None, details={}),
        *swaps,
        *(examples.task(run=run, group=group, index=group, size=MEMBERS) for group in range(GROUPS)),
        *(
            examples.rollout(
                run=run,
                group=group,
                member=member,
                tokens=examples.packed_tokens(ids),
                logprobs=examples.packed_logprobs([-0.5] * 4),
                turns=[Turn(8, 4, 0, "stop")],
                spans=[Span(0, 0, 1), Span(1, 1, 4)],
            )
            for group in range(GROUPS)
            for member in range(MEMBERS)
        ),
        *(examples.step(run=run, number=number, metrics=METRICS) for number in range(1, committed + 1)),
        examples.metric(run=run, gauges={"sampled_tokens": 100.0, "ready_s": 10.0, "busy_s": 7.5}),
        examples.metric(run=run, role="dispatcher", id="d", version=None, gauges={"groups_open": 7.0}),
        examples.metric(run=run, role="trainer", id="trainer", version=None, gauges={"rollouts_held": 4.0}),
        examples.dead(run=run),
        examples.lifecycle(run=run, role="trainer", id="trainer", state="stopped", pid=11, version=None, details={}),
    ]
