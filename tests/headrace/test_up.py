"""What ``headrace up`` says before it starts any role."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from bus import EmbeddedServer, connect
from headrace.config import stored
from headrace.up import _check_unfinished
from schemas import RunError
from tests.headrace import recorded
from tests.headrace.conftest import Headrace

DEMO = Path(__file__).parents[2] / "configs" / "demo.toml"


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: object, **named: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr("bus.EmbeddedServer.start", started)


@pytest.mark.usefixtures("no_start")
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("environments.0.name=revers", "did you mean 'reverse'?"),
        ("environments.0.args.lenght=5", "has no argument 'lenght' (did you mean 'length'?)"),
        ("environments.0.args.length=abc", "args.length = 'abc'"),
        ("generator.engine=vlm", "use vllm, or module:Class"),
        ("log.replicas=3", "set it to 1"),
        ("model.make=''", "correct model.path"),
    ],
)
def test_what_cannot_run_is_said_in_one_line_before_anything_is_made(
    headrace: Headrace, tmp_path: Path, key: str, words: str
) -> None:
    model = f"model.path={tmp_path / 'model'}"
    told = headrace("up", DEMO, "--dir", tmp_path / "runs", "--set", model, "--set", key)
    assert told.code == 1
    assert words in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "runs" / "demo" / "config.json").exists()


@pytest.mark.usefixtures("no_start")
@pytest.mark.parametrize("place", ["file", "/proc/nowhere"])
def test_place_that_cannot_hold_a_run_is_said_before_the_model_is_made(
    headrace: Headrace, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    model = tmp_path / "model"
    told = headrace("up", DEMO, "--dir", tmp_path / place, "--set", f"model.path={model}")
    assert told.code == 1
    assert "give another folder with --dir" in told.err
    assert told.err.count("\n") == 1
    assert not model.exists()


@pytest.mark.parametrize("announced", [1, 2])
async def test_run_is_finished_when_its_last_weights_are_announced(tmp_path: Path, announced: int) -> None:
    folder = recorded.prepare(tmp_path / "runs", "demo", steps=2)
    server = EmbeddedServer.start(folder.nats)
    try:
        await recorded.record(server, "demo", [*recorded.weights_of(folder, announced), *recorded.events("demo", 2)])
        bus = await connect(server.address("supervisor"), run="demo", role="supervisor", id="up")
        finished = pytest.raises(RunError, match="is finished: step 2 of 2")
        with finished if announced == 2 else contextlib.nullcontext():
            await _check_unfinished(bus, stored(folder.path))
        await bus.close()
    finally:
        server.stop()
