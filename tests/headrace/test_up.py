"""What ``headrace up`` says before it starts any role, what it starts, and what it shows."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import ClassVar, cast

import pytest
from rich.console import Console

from bus import Address, EmbeddedServer
from headrace.config import load
from headrace.folder import RunFolder
from headrace.hosted_server import HostedServer
from headrace.progress import Progress
from headrace.supervisor import RoleCommand
from headrace.up import _show, role_commands, up
from headrace.view import RunView
from headrace.watch import Watch
from schemas import RunError
from tests.examples import metric
from tests.headrace.conftest import Headrace
from tests.logs import logged

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
        ("trainer.loss=grpoo", "trainer.loss 'grpoo' is no loss (did you mean 'grpo'?)"),
        ("trainer.loss_args.beta=1", "trainer.loss_args.beta: loss 'grpo' has no such setting"),
        ("generator.engine=vlm", "use vllm, or module:Class"),
        ("log.replicas=3", "set it to 1"),
        ("evaluation={every_steps=5, generator='7'}", "evaluation.generator is '7', which headrace up does not start"),
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


def test_accepted_changes_are_passed_on_to_the_trainer(tmp_path: Path) -> None:
    class Server:
        def address(self, role: str) -> Address:
            return Address("nats://127.0.0.1:1", role, "secret")

    def trainer(**options: bool) -> RoleCommand:
        commands = role_commands(load(DEMO), RunFolder(tmp_path), cast(HostedServer, Server()), **options)
        return next(command for command in commands if command.name == "trainer")

    assert trainer().arguments[:2] == ["train", str(tmp_path / "config.json")]
    assert trainer(accept_changes=True).arguments[:2] == ["train", "--accept-changes"]


def test_each_role_sees_the_gpus_that_are_its_own(tmp_path: Path) -> None:
    class Server:
        def address(self, role: str) -> Address:
            return Address("nats://127.0.0.1:1", role, "secret")

    config = load(DEMO, ["generator.count=2", "generator.tensor_parallel_size=2", "trainer.data_parallel=2"])
    server = cast(HostedServer, Server())

    def visible(gpus: list[str]) -> dict[str, str | None]:
        commands = role_commands(config, RunFolder(tmp_path), server, gpus)
        return {command.name: command.environment.get("CUDA_VISIBLE_DEVICES") for command in commands}

    assert visible(list("012345")) == {
        "trainer": "0,1", "dispatcher": None, "generator-0": "2,3", "generator-1": "4,5"
    }  # fmt: skip
    assert set(visible([]).values()) == {None}


class NoRoles:
    """In the supervisor's place: it has nothing to do."""

    gauges: ClassVar[dict[str, float]] = {}

    def __init__(self, *arguments: object) -> None:
        pass

    async def run(self, stop: asyncio.Event) -> None:
        pass


def test_a_server_that_dies_before_the_roles_are_started_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = Watch.catch_up

    async def killed_before(self: Watch) -> None:
        os.kill(EmbeddedServer.find_pid(tmp_path / "demo" / "nats") or 0, signal.SIGKILL)
        await read(self)

    monkeypatch.setattr("headrace.up.Supervisor", NoRoles)
    monkeypatch.setattr("headrace.up.make_model", lambda *arguments, **named: None)
    monkeypatch.setattr(Watch, "catch_up", killed_before)
    written = io.StringIO()
    with pytest.raises(RunError, match="was stopped after step 0"):
        up(load(DEMO), tmp_path, Console(file=written, width=300))
    assert written.getvalue().count("nats-server has died and is started again") == 2


@pytest.mark.parametrize("turns", range(6))
async def test_showing_ends_when_it_is_cancelled_just_as_something_changes(turns: int) -> None:
    view, changed = RunView("demo"), asyncio.Event()
    progress = Progress(view, 10, Console(file=io.StringIO(), width=300))
    showing = asyncio.create_task(_show(progress, view, changed, asyncio.Event()))
    changed.set()
    while changed.is_set():  # noqa: ASYNC110 - it is cleared once it was seen
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    changed.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    showing.cancel()
    await asyncio.wait({showing}, timeout=30.0)
    assert showing.cancelled()


def test_a_log_that_fills_is_said_on_a_line_of_its_own() -> None:
    view, changed, written = RunView("demo"), asyncio.Event(), io.StringIO()
    progress = Progress(view, 10, Console(file=written, width=300))

    async def show() -> None:
        showing = asyncio.create_task(_show(progress, view, changed, asyncio.Event()))
        for used in (0.5, 0.81, 0.82, 0.9):
            gauges = {"log_used": used, "log_steps_left": 4.0}
            view.apply(logged(metric(role="trainer", id="trainer", gauges=gauges)))
            changed.set()
            while changed.is_set():  # noqa: ASYNC110 - it is cleared once it was seen
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        showing.cancel()

    asyncio.run(show())
    lines = [line for line in written.getvalue().splitlines() if "ROLLOUTS" in line]
    assert [line[:40] for line in lines] == [
        "ROLLOUTS holds 81 % of its limit: about ", "ROLLOUTS holds 90 % of its limit: about "
    ]  # fmt: skip
