"""A run of which there is only a backup: restored on an empty server, it is looked at and trained again there."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats
import pytest

from bus import Address, Bus, EmbeddedServer, FileWeights, connect, open_run_files, open_weights
from bus.permissions import inbox_prefix
from bus.settings import WeightsSettings
from headrace import config as configuration
from headrace.folder import RunFolder
from headrace.inquiry import Place, ask
from schemas import LEDGER, STREAMS, Step, Weights
from tests.end_to_end.conftest import ROOT
from tests.headrace.conftest import STEPS, Headrace
from tests.stand_in.nats_cli.backup import back_up, restore
from tests.stand_in.open_server import open_server

pytestmark = pytest.mark.timeout(400)


class Restored(NamedTuple):
    """What somebody has who was given a backup."""

    server: str
    config: Path
    model: Path
    empty: Path
    """A folder without any run."""

    def words(self, command: str, *more: str | Path) -> list[str | Path]:
        return [*command.split(), "--server", self.server, "--dir", self.empty, *more]


async def move(place: Address, streams: list[str], server: str, backup: Path) -> None:
    """Back up as the operator on one server, and restore on the other, as the nats CLI does."""
    source = await nats.connect(
        place.url, user=place.user, password=place.password, inbox_prefix=inbox_prefix("operator").encode()
    )
    target = await nats.connect(server)
    for stream in streams:
        await back_up(source, stream, backup / stream)
        await restore(target, backup / stream)
    await source.close()
    await target.close()


@pytest.fixture(scope="module")
def restored(whole: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    with restoring(whole, tmp_path_factory.mktemp("restored")) as restored:
        yield restored


@pytest.fixture(scope="module")
def complete(whole: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    """With the run's bucket, as where weights travel through NATS: configuration, model, and the last weights."""
    with restoring(whole, tmp_path_factory.mktemp("complete")) as restored:
        config = msgspec.structs.replace(
            configuration.stored(whole.path), weights=WeightsSettings(store="jetstream", max_gib=0.25)
        )

        async def fill() -> None:
            bus = await connect(Address(restored.server), run=whole.name, role="admin", id="filler")
            await bus.apply_topology(config.log, config.weights)
            await open_run_files(bus).put(restored.model, configuration.encoded(config))
            store = open_weights(bus, config.weights, shared=whole.weights, cache=restored.empty.parent / "cache")
            sha256 = (await FileWeights(whole.weights, 0).versions())[STEPS]
            await store.put((whole.weights / sha256 / "model.safetensors").read_bytes(), version=STEPS)
            await bus.close()

        asyncio.run(fill())
        yield restored


@contextmanager
def restoring(whole: RunFolder, place: Path) -> Iterator[Restored]:
    shutil.copytree(whole.nats, place / "store")
    streams = [spec.name(whole.name) for spec in STREAMS]
    with open_server(place / "elsewhere") as server:
        old = EmbeddedServer.start(place / "store", run=whole.name)
        try:
            asyncio.run(move(old.address("operator"), streams, server, place / "backup"))
        finally:
            old.stop()
        config = Path(shutil.copy(whole.path / configuration.FILE_NAME, place))
        model = Path(shutil.copytree(configuration.stored(whole.path).model.path, place / "model"))
        yield Restored(server, config, model, place / "runs")


def test_it_trains_again_to_the_same_bits(restored: Restored, headrace: Headrace) -> None:
    told = headrace(
        *restored.words("replay train whole --json"), "--config", restored.config, "--model", restored.model
    )
    assert told.code == 0, told.err
    *steps, last = [json.loads(line) for line in told.out.splitlines()]
    assert (last["identical"], last["steps"], last["checkpoint"]) == (True, STEPS, 0)
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))


def test_with_the_checkpoints_it_begins_in_the_middle(restored: Restored, whole: RunFolder, headrace: Headrace) -> None:
    """``--dir`` names where the run was made, or a copy of it."""
    words = ["replay", "train", "whole", "--server", restored.server, "--dir", str(whole.path.parent)]
    told = headrace(*words, "--steps", "5..6", "--json")
    last = json.loads(told.out.splitlines()[-1])
    assert (last["identical"], last["checkpoint"]) == (True, 4)


def test_its_rollouts_train_another_run_there(restored: Restored, whole: RunFolder) -> None:
    words = restored.words("replay events whole --into dev --speed max --json", "--config", restored.config)
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        train = told_command(process).split()
        trainer = subprocess.run(
            [sys.executable, "-m", "headrace", *train], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert trainer.returncode == 0, trainer.stderr
        out, err = process.communicate()
        assert process.returncode == 0, err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert json.loads(out)["duplicates"] == 0
    assert steps_of(Place("dev", RunFolder(restored.empty / "dev"), restored.server)) == steps_of(Place("whole", whole))


def told_command(process: subprocess.Popen[str]) -> str:
    """What the replay says that trains its rollouts, without ``headrace``."""
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        if line.startswith("train it with: headrace "):
            return line.removeprefix("train it with: headrace ")
        told += line
    pytest.fail(f"the replay ended before it said how to train: {told}")


def steps_of(place: Place) -> list[Any]:
    async def question(bus: Bus, goes_on: bool) -> list[Any]:
        steps = [each.event async for each in bus.read(LEDGER, kinds=(Step,))]
        return [(step.groups, step.weights_after) for step in steps if isinstance(step, Step)]

    return ask(place, question)


@pytest.mark.parametrize("id", ["3", "0/1", "0/"])
def test_show_finds_in_it_what_the_run_has(id: str, restored: Restored, whole: RunFolder, headrace: Headrace) -> None:
    there = headrace(*restored.words(f"show whole {id}", "--model", restored.model))
    here = headrace("show", "whole", id, "--dir", whole.path.parent)
    assert there.code == 0, there.err
    assert there.out == here.out


def test_status_and_tail_read_it(restored: Restored, headrace: Headrace) -> None:
    status = headrace(*restored.words("status whole --json"))
    assert status.code == 0, status.err
    assert json.loads(status.out)["step"] == STEPS
    tail = headrace(*restored.words("tail whole --no-follow --kind weights"))
    assert f"weights v{STEPS} " in tail.out.splitlines()[-1]


@pytest.mark.parametrize("command", ["replay train whole", "replay events whole --into other"])
def test_without_its_configuration_a_replay_says_where_that_is(
    command: str, restored: Restored, headrace: Headrace
) -> None:
    told = headrace(*restored.words(command))
    assert (told.code, told.out) == (1, "")
    assert f"neither NATS nor {restored.empty / 'whole'} has the config.json of run 'whole'" in told.err
    assert "a replay takes the file with --config FILE as well" in told.err
    assert len(told.err.splitlines()) == 1


def test_where_weights_travel_through_nats_it_has_all_that_a_replay_needs(
    complete: Restored, headrace: Headrace
) -> None:
    told = headrace(*complete.words("replay train whole --json"))
    assert told.code == 0, told.err
    last = json.loads(told.out.splitlines()[-1])
    assert (last["identical"], last["steps"]) == (True, STEPS)


def test_where_weights_travel_through_nats_status_knows_the_run_s_end(complete: Restored, headrace: Headrace) -> None:
    told = json.loads(headrace(*complete.words("status whole --json")).out)
    assert (told["state"], told["steps"]) == ("finished", STEPS)


def test_without_configuration_nothing_is_exported(restored: Restored, headrace: Headrace, tmp_path: Path) -> None:
    told = headrace(*restored.words("model export whole"), tmp_path / "out")
    assert told.code == 1
    assert "has the config.json of run 'whole'" in told.err
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_is_not_there_is_told(restored: Restored, headrace: Headrace) -> None:
    told = headrace(*restored.words("replay train whole", "--config", restored.empty / "nope.json"))
    assert told.err.startswith(f"headrace replay: there is no configuration {restored.empty / 'nope.json'}: ")


def test_another_configuration_is_noticed(restored: Restored, tmp_path: Path, headrace: Headrace) -> None:
    config = tmp_path / "config.json"
    config.write_text(restored.config.read_text().replace('"lr": 0.0005', '"lr": 0.001'))
    more = ("--config", config, "--model", restored.model)
    told = headrace(*restored.words("replay train whole --steps 1..2", *more))
    assert "NOT identical, first at step 1" in told.out
    assert "not as recorded: configuration: recorded " in told.out


def test_without_its_model_training_says_which_one_it_was(
    restored: Restored, tmp_path: Path, headrace: Headrace
) -> None:
    config = tmp_path / "config.json"
    config.write_text(restored.config.read_text().replace('"path": "', '"path": "/nowhere'))
    told = headrace(*restored.words("replay train whole", "--config", config))
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("headrace replay: run 'whole' began with the model in /nowhere")
    assert told.err.endswith("which is not here: give a copy of it with --model DIR\n")


def test_without_its_model_a_rollout_says_what_it_needs(restored: Restored, headrace: Headrace) -> None:
    told = headrace(*restored.words("show whole 0/1"))
    assert told.code == 1
    assert "give a directory with its tokenizer with --model DIR, or take --json" in told.err


def test_a_stream_that_was_not_restored_is_named(restored: Restored, headrace: Headrace, tmp_path: Path) -> None:
    with open_server(tmp_path / "empty") as server:
        told = headrace("replay", "train", "whole", "--server", server, "--config", restored.config, "--dir", tmp_path)
    assert told.code == 1
    assert f"there is no run 'whole' on {server}" in told.err


async def announce_in_nats(server: str) -> None:
    """Have the last weights announced where they lie in the bucket: the run was made with a store of files."""
    bus = await connect(Address(server), run="whole", role="admin", id="trainer")
    last = await bus.last(LEDGER, Weights)
    assert last is not None
    assert isinstance(last.event, Weights)
    location = f"jetstream:whole_weights/{last.event.sha256}"
    await bus.publish(msgspec.structs.replace(last.event, location=location))
    await bus.close()


def test_weights_are_exported_from_nats(
    complete: Restored, whole: RunFolder, headrace: Headrace, tmp_path: Path
) -> None:
    asyncio.run(announce_in_nats(complete.server))
    told = headrace(*complete.words("model export whole"), tmp_path / "out", "--json")
    assert told.code == 0, told.err
    assert json.loads(told.out)["version"] == STEPS
    here = headrace("model", "export", "whole", tmp_path / "here", "--dir", whole.path.parent)
    assert here.code == 0, here.err
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
