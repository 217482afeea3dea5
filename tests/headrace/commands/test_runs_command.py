from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from headrace.folder import RunFolder
from tests.headrace.conftest import GoingOn, Headrace


def test_runs_are_listed_with_state_step_and_reward(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("runs", "--dir", ended.path.parent)
    lines = [line.split() for line in told.out.splitlines()]
    assert told.code == 0
    assert lines[1:] == [["demo", "finished", "3/3", "0.5"], ["other", "interrupted", "2/10", "0.5"]]


def test_run_that_goes_on_is_running(going_on: GoingOn, headrace: Headrace) -> None:
    told = headrace("runs", "--dir", going_on.folder.path.parent, "--json")
    assert msgspec.json.decode(told.out) == [
        {"run": "demo", "state": "running", "step": 2, "steps": 10, "reward_last": 0.5, "note": ""}
    ]


def test_run_that_cannot_be_read_does_not_hide_the_others(ended: RunFolder, tmp_path: Path, headrace: Headrace) -> None:
    shutil.copytree(ended.path, tmp_path / "good")
    shutil.copytree(ended.path, tmp_path / "demo")
    (tmp_path / "good" / "config.json").write_text("{")
    told = headrace("runs", "--dir", tmp_path, "--json")
    found = {line["run"]: line for line in msgspec.json.decode(told.out)}
    assert told.code == 0
    assert found["demo"]["state"] == "finished"
    assert found["good"]["state"] == "unreadable"
    assert "is damaged" in found["good"]["note"]


def test_run_of_another_user_does_not_hide_the_others(
    ended: RunFolder, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied", str(ended.path / ".turn"))

    monkeypatch.setattr("headrace.commands.runs.ask", refused)
    told = headrace("runs", "--dir", ended.path.parent, "--json")
    assert (told.code, json.loads(told.out)[0]["state"]) == (0, "unreadable")
    assert "Permission denied" in json.loads(told.out)[0]["note"]


def test_paused_run_is_paused(going_on: GoingOn, headrace: Headrace) -> None:
    assert headrace("pause", "demo", "--dir", going_on.folder.path.parent).code == 0
    told = headrace("runs", "--dir", going_on.folder.path.parent, "--json")
    assert json.loads(told.out)[0]["state"] == "paused"


def test_folder_without_runs_says_how_to_get_one(tmp_path: Path, headrace: Headrace) -> None:
    told = headrace("runs", "--dir", tmp_path / "none")
    assert told.code == 0
    assert "headrace up CONFIG" in told.out
    assert headrace("runs", "--dir", tmp_path / "none", "--json").out == "[]\n"
