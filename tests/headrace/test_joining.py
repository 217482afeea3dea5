"""A generator that has no configuration of its own takes the run's from NATS."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bus import EmbeddedServer, connect, open_run_files
from bus.settings import LogSettings, WeightsSettings
from headrace import config as configuration
from headrace.config import RunConfig, encoded, received
from headrace.folder import RunFolder
from headrace.roles import join
from headrace.server import environment_for
from schemas import ConfigError, EnvironmentSettings, ModelSettings, RunError, RunSettings, StreamMismatch
from tests.waiting import DEADLINE_S, eventually

BY_NATS = WeightsSettings(store="jetstream")
_numbers = itertools.count(1)


def config_of(run: str) -> RunConfig:
    return RunConfig(
        run=RunSettings(name=run, steps=3),
        model=ModelSettings(path="models/tiny"),
        environments=[EnvironmentSettings(name="reverse")],
        weights=BY_NATS,
    )


@pytest.fixture
def run(server: EmbeddedServer) -> str:
    """A run with a bucket, into which nothing was put."""
    name = f"joined{next(_numbers)}"

    async def make() -> None:
        bus = await connect(server.address("topology"), run=name, role="topology", id="t")
        await bus.apply_topology(LogSettings(), BY_NATS)
        await bus.close()

    asyncio.run(make())
    return name


def put(server: EmbeddedServer, run: str, payload: bytes, model: Path) -> None:
    async def act() -> None:
        bus = await connect(server.address("trainer"), run=run, role="trainer", id="t")
        await open_run_files(bus).put(model, payload)
        await bus.close()

    asyncio.run(act())


def generator(server: EmbeddedServer, run: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "generate", "--run", run, "--dir", str(log.parent)]
    with log.open("wb") as output:
        return subprocess.Popen(command, stderr=output, env=os.environ | environment_for(server.address("generator")))


def test_the_run_s_configuration_is_taken_with_the_model_s_place_here(
    server: EmbeddedServer, run: str, tmp_path: Path
) -> None:
    put(server, run, encoded(config_of(run)), tmp_path)
    folder = RunFolder(tmp_path / "runs" / run)
    taken = join(run, server.address("generator"), "g", folder, ["generator.concurrency=64"])
    assert taken.run == config_of(run).run
    assert taken.generator.concurrency == 64
    assert taken.model.path == str(folder.model)


def test_configuration_of_another_run_is_refused(server: EmbeddedServer, run: str, tmp_path: Path) -> None:
    put(server, run, encoded(config_of("other")), tmp_path)
    with pytest.raises(ConfigError, match=f"of run 'other', not '{run}'"):
        join(run, server.address("generator"), "g", RunFolder(tmp_path), [])


def test_run_whose_weights_lie_in_files_cannot_be_joined_so(server: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(StreamMismatch, match=r'weights\.store = "jetstream", or correct the name of the run'):
        join("nowhere", server.address("generator"), "g", RunFolder(tmp_path), [])


async def test_a_generator_that_waits_for_its_trainer_ends_at_once_when_asked(
    server: EmbeddedServer, run: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = generator(server, run, log)

    async def says_so() -> bool:
        return "the trainer puts it and the model when it starts" in log.read_text()

    await eventually(says_so)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("override", ["run.steps=5", "trainer.lr=1", "generator.max_model_len=32", "model.path=x"])
def test_what_the_run_decides_cannot_be_set_by_a_generator(override: str) -> None:
    with pytest.raises(ConfigError, match=r"only keys of \[generator\] that do not decide what is trained"):
        received(encoded(config_of("demo")), "run 'demo'", [override])


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff"])
def test_configuration_that_is_damaged_is_named(payload: bytes) -> None:
    with pytest.raises(RunError, match="run 'demo' is damaged"):
        received(payload, "run 'demo'", [])


def test_configuration_of_a_newer_version_is_refused_by_its_key() -> None:
    payload = encoded(config_of("demo")).replace(b'"seed"', b'"sead"')
    with pytest.raises(ConfigError, match=r"run 'demo': run\.sead"):
        received(payload, "run 'demo'", [])


def test_what_was_encoded_reads_back() -> None:
    config = config_of("demo")
    assert received(encoded(config), "run 'demo'", []) == config
    assert configuration.digest(received(encoded(config), "run 'demo'", [])) == configuration.digest(config)
