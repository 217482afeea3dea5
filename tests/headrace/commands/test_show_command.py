from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from headrace.folder import RunFolder
from tests.headrace.conftest import Headrace


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


def test_group_lists_its_members(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("show", "demo", "1/", "--dir", ended.path.parent)
    assert [line.split()[3] for line in told.out.splitlines()] == ["g1/0", "g1/1", "g1/2"]


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
