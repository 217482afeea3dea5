from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bus import EmbeddedServer, connect
from headrace.folder import RunFolder
from schemas import ROLLOUTS, Event
from tests import examples
from tests.headrace import recorded
from tests.headrace.conftest import Headrace

MakeLog = Callable[..., RunFolder]


@pytest.fixture
def make_log(tmp_path: Path) -> MakeLog:
    """A run ``kept`` with a log of these events, purged below sequence ``purge``."""

    def make(log: list[Event], *, purge: int = 0) -> RunFolder:
        folder = recorded.prepare(tmp_path, "kept")
        recorded.add(folder, [msgspec.structs.replace(event, run="kept") for event in log])
        if purge:
            server = EmbeddedServer.start(folder.nats)
            asyncio.run(purge_below(server, purge))
            server.stop()
        return folder

    return make


async def purge_below(server: EmbeddedServer, sequence: int) -> None:
    bus = await connect(server.address("trainer"), run="kept", role="trainer", id="trainer")
    await bus.purge(ROLLOUTS, before=sequence)
    await bus.close()


def test_rollout_is_shown_with_the_version_of_each_token(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("show", "demo", "1/2", "--dir", ended.path.parent)
    lines = [line.rstrip() for line in told.out.splitlines()]
    assert told.code == 0
    assert lines[-3:] == ["  context │ rev:abc=", "       v0 │ c", "       v1 │ ba<|im_end|>"]
    assert lines[0].split() == ["rollout", "g1/2", "of", "run", "demo"]


def test_rollout_as_json_has_its_tokens(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("show", "demo", "g1/2", "--dir", ended.path.parent, "--json")
    rollout = msgspec.json.decode(told.out)
    assert (rollout["group"], rollout["member"], len(rollout["tokens"])) == (1, 2, 12)


@pytest.mark.parametrize("id", ["1/", "g1/", "g1"])
def test_group_lists_its_members(id: str, ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("show", "demo", id, "--dir", ended.path.parent)
    title, *members = told.out.splitlines()[-4:]
    assert title.split()[:3] == ["member", "reward", "versions"]
    assert [line.split()[:3] for line in members] == [
        ["0", "0.80", "v0-1"],
        ["1", "0.80", "v0-1"],
        ["2", "0.80", "v0-1"],
    ]


def test_a_rollout_and_its_group_tell_what_became_of_them(make_log: MakeLog, headrace: Headrace) -> None:
    """Group 0 was trained, group 1 was closed, and group 2 is open."""
    trained = examples.trained_group(group=0, sequences=[1, 2], rewards=[1.0, 0.5], advantages=[1.0, -1.0], left_out={})
    run = make_log(
        [
            *(examples.rollout(group=group, member=member) for group in range(3) for member in range(2)),
            examples.step(number=1, groups=[trained], packing=[[[0, 1]]], left_out={}, left_out_tokens={}),
            examples.closed(group=1, step=2, rewards=[1.0, 1.0]),
        ]
    )
    fates = ("trained in step 1", "left out with its group at step 2: no_signal", "no step has trained it so far")
    for group, fate in enumerate(fates):
        told = headrace("show", run.name, f"{group}/", "--dir", run.path.parent)
        assert f"became       {fate}" in told.out.replace(" \n", "\n")
    told = headrace("show", run.name, "0/1", "--dir", run.path.parent, "--model", run.path.parent / "models" / "tiny")
    assert "trained in step 1 with advantage -1.0000" in told.out


def test_what_retention_has_purged_is_told(make_log: MakeLog, headrace: Headrace) -> None:
    run = make_log([examples.rollout(group=group, member=member) for group in range(3) for member in range(2)], purge=4)
    purged = '(log.keep = "checkpoints": rollouts up to sequence 3 were purged)'
    for id, message in (
        ("0/1", f"run 'kept' has no rollout of group 0; the nearest group is 1 {purged}"),
        ("1/0", f"run 'kept' has no rollout 1/0; the members of group 1 are 1 {purged}"),
    ):
        told = headrace("show", run.name, id, "--dir", run.path.parent)
        assert (told.code, told.err) == (1, f"headrace show: {message}\n")


def test_when_all_is_purged_no_group_is_near(make_log: MakeLog, headrace: Headrace) -> None:
    run = make_log([examples.rollout(group=0, member=0)], purge=2)
    told = headrace("show", run.name, "0/", "--dir", run.path.parent)
    assert told.err.startswith("headrace show: run 'kept' has no rollout of group 0 (log.keep")


def test_a_run_that_has_just_begun_has_nothing_to_show(make_log: MakeLog, headrace: Headrace) -> None:
    run = make_log([])
    for id, words in (("0/", "has no rollouts yet"), ("1", "has committed no step yet")):
        told = headrace("show", run.name, id, "--dir", run.path.parent)
        assert told.err == f"headrace show: run 'kept' {words}: see headrace tail kept\n"


@pytest.mark.parametrize("id", ["2", "step-2"])
def test_step_shows_what_it_trained(id: str, ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("show", "demo", id, "--dir", ended.path.parent)
    assert told.code == 0
    assert told.out.split()[:3] == ["step", "2", "of"]
    assert "2 of 3 members of 1 groups" in told.out


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("9", "run 'demo' has no step 9; it has committed 1-3"),
        ("1/7", "run 'demo' has no rollout 1/7; the members of group 1 are 0-2"),
        ("7/1", "run 'demo' has no rollout of group 7; the nearest group is 1"),
    ],
)
def test_what_there_is_not_is_told_with_the_nearest_that_there_is(
    id: str, message: str, ended: RunFolder, headrace: Headrace
) -> None:
    told = headrace("show", "demo", id, "--dir", ended.path.parent)
    assert told.code == 1
    assert told.err == f"headrace show: {message}\n"


def test_model_that_is_gone_can_be_named(ended: RunFolder, tmp_path: Path, headrace: Headrace) -> None:
    shutil.copytree(ended.path.parent, tmp_path / "runs")
    config = tmp_path / "runs" / "demo" / "config.json"
    config.write_text(config.read_text().replace(str(ended.path.parent), str(tmp_path / "gone")))
    told = headrace("show", "demo", "1/2", "--dir", tmp_path / "runs")
    assert told.code == 1
    assert "tokenizer.json does not exist" in told.err
    told = headrace("show", "demo", "1/2", "--dir", tmp_path / "runs", "--model", tmp_path / "runs" / "models" / "tiny")
    assert told.code == 0


def test_run_of_which_only_the_log_is_here_asks_for_the_model(
    ended: RunFolder, tmp_path: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bus import EmbeddedServer

    shutil.copytree(ended.nats, tmp_path / "nats")
    server = EmbeddedServer.start(tmp_path / "nats")
    address = server.address("reader")
    monkeypatch.setenv("HEADRACE_NATS_USER", str(address.user))
    monkeypatch.setenv("HEADRACE_NATS_PASSWORD", str(address.password))
    told = headrace("show", "demo", "1/2", "--server", address.url, "--dir", tmp_path)
    as_json = headrace("show", "demo", "1/2", "--server", address.url, "--dir", tmp_path, "--json")
    server.stop()
    assert told.code == 1
    assert "--model DIR" in told.err
    assert as_json.code == 0
