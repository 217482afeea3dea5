"""Model and configuration in the bucket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from bus import Bucket, RunFiles
from bus.weights.objects import ObjectInfo
from schemas import WeightsError
from tests.bus.weights.conftest import ConnectTo, InNats
from tests.waiting import eventually

CONFIG = b'{"run": {"name": "demo"}}'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    for name, size in {"model.safetensors": 500_000, "config.json": 300, "tokenizer.json": 70_000}.items():
        (folder / name).write_bytes(os.urandom(size))
    return folder


@pytest.fixture
def mine(in_nats: InNats) -> RunFiles:
    """The trainer's."""
    return RunFiles(in_nats.bucket)


@pytest.fixture
async def theirs(in_nats: InNats) -> RunFiles:
    """A generator's."""
    return RunFiles((await in_nats.elsewhere())._bucket)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_model_and_configuration_arrive_elsewhere(
    mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path
) -> None:
    sent = await mine.put(model, CONFIG)
    assert sent == ["model/config.json", "model/model.safetensors", "model/tokenizer.json", "config.json"]
    assert await theirs.config() == CONFIG
    await theirs.fetch_model(tmp_path / "taken")
    assert contents(tmp_path / "taken") == contents(model)


async def test_the_configuration_can_be_read_by_who_only_looks(
    connect_to: ConnectTo, mine: RunFiles, model: Path
) -> None:
    """A reader may make no consumer on the bucket."""
    reader = RunFiles(Bucket(await connect_to("reader")))
    assert await reader.config_now() is None
    long = CONFIG + b" " * 200_000
    await mine.put(model, long)
    assert await reader.config_now() == long


async def test_what_lies_beside_the_weights_can_be_taken_without_them(
    mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path
) -> None:
    await mine.put(model, CONFIG)
    await theirs.fetch_model(tmp_path / "taken", tensors=False)
    assert contents(tmp_path / "taken").keys() == {"config.json", "tokenizer.json"}


async def test_what_is_there_is_not_sent_again_and_what_changed_is(mine: RunFiles, model: Path) -> None:
    await mine.put(model, CONFIG)
    assert await mine.put(model, CONFIG) == []
    (model / "config.json").write_bytes(b"{}")
    assert await mine.put(model, CONFIG + b"\n") == ["model/config.json", "config.json"]


async def test_a_file_that_the_model_has_no_more_is_not_taken(
    mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path
) -> None:
    await mine.put(model, CONFIG)
    (model / "tokenizer.json").unlink()
    await mine.put(model, CONFIG)
    await theirs.fetch_model(tmp_path / "taken")
    assert contents(tmp_path / "taken").keys() == {"model.safetensors", "config.json"}


async def test_pickles_code_and_hidden_files_stay_at_home(
    mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path
) -> None:
    for name in ("pytorch_model.bin", "training_args.pt", "modeling.py", ".git.json", "README.md"):
        (model / name).write_bytes(b"x")
    (model / "sub.json").mkdir()
    await mine.put(model, CONFIG)
    await theirs.fetch_model(tmp_path / "taken")
    assert contents(tmp_path / "taken").keys() == {"model.safetensors", "config.json", "tokenizer.json"}


async def test_who_comes_before_the_trainer_waits_and_says_so(
    mine: RunFiles,
    theirs: RunFiles,
    model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bus.patience.LINE_EVERY_S", 0.05)
    taking = asyncio.create_task(theirs.fetch_model(tmp_path / "taken"))

    async def said() -> bool:
        return "it is not there yet: the trainer puts it and the model when it starts" in caplog.text

    await eventually(said)
    assert not taking.done()
    await mine.put(model, CONFIG)
    await taking
    assert contents(tmp_path / "taken") == contents(model)


async def test_what_was_taken_is_not_read_again_and_damage_is_mended(
    mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path
) -> None:
    await mine.put(model, CONFIG)
    taken = tmp_path / "taken"
    await theirs.fetch_model(taken)
    before = (taken / "tokenizer.json").stat().st_ino
    (taken / "config.json").write_bytes(b"cut short")
    await theirs.fetch_model(taken)
    assert contents(taken) == contents(model)
    assert (taken / "tokenizer.json").stat().st_ino == before


@pytest.mark.parametrize("name", ["../up.json", ".hidden.json", "a/b.json", "pytorch_model.bin", "code.py", ""])
async def test_a_name_that_is_no_model_file_is_refused(
    name: str, mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path, in_nats: InNats
) -> None:
    await mine.put(model, CONFIG)
    info = await in_nats.bucket.info("model/config.json")
    assert info is not None
    bad = msgspec.structs.replace(info, name=f"model/{name}")
    await in_nats.store_metadata(bad.name, msgspec.json.encode(bad))
    with pytest.raises(WeightsError, match="is no file of a model: remove it"):
        await theirs.fetch_model(tmp_path / "x" / "taken")
    assert not (tmp_path / "x" / "up.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"size": 299}, "has more"), ({"size": 301}, "and has 300"), ({"digest": "SHA-256=AAAA"}, "is damaged")],
)
async def test_a_file_that_is_not_what_its_metadata_says_is_refused(
    change: dict[str, object], message: str, mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path,
    in_nats: InNats,
) -> None:  # fmt: skip
    await mine.put(model, CONFIG)
    info = await in_nats.bucket.info("model/config.json")
    assert info is not None
    await in_nats.store_metadata(info.name, msgspec.json.encode(msgspec.structs.replace(info, **change)))
    with pytest.raises(WeightsError, match=message):
        await theirs.fetch_model(tmp_path / "taken")
    assert not (tmp_path / "taken" / "config.json").exists()


async def test_configuration_that_is_too_large_is_not_read(
    mine: RunFiles, theirs: RunFiles, model: Path, in_nats: InNats
) -> None:
    await mine.put(model, CONFIG)
    info = await in_nats.bucket.info("config.json")
    assert isinstance(info, ObjectInfo)
    huge = msgspec.structs.replace(info, size=10**12)
    await in_nats.store_metadata("config.json", msgspec.json.encode(huge))
    with pytest.raises(WeightsError, match="that is no configuration"):
        await theirs.config()


async def test_a_bucket_without_a_model_says_so(in_nats: InNats, mine: RunFiles, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    await mine.put(tmp_path / "empty", CONFIG)
    with pytest.raises(WeightsError, match="start the trainer again, which puts them"):
        await mine.fetch_model(tmp_path / "taken")


async def test_prune_of_weights_leaves_model_and_configuration(
    in_nats: InNats, connect_to: ConnectTo, mine: RunFiles, theirs: RunFiles, model: Path, tmp_path: Path
) -> None:
    await mine.put(model, CONFIG)
    for version in range(4):
        await in_nats.store.put(b"%d" % version, version=version)
    await in_nats.store.prune()
    assert await theirs.config() == CONFIG
    await theirs.fetch_model(tmp_path / "taken")
    assert contents(tmp_path / "taken") == contents(model)
