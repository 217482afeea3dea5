from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from headrace.folder import RunFolder
from headrace.state import RunState, UnansweredState
from tests.headrace.conftest import GoingOn, Headrace
from tests.signals import stop


def test_status_after_the_run_has_everything(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("status", "demo", "--dir", ended.path.parent, "--json")
    assert told.code == 0
    state = msgspec.json.decode(told.out, type=RunState)
    assert (state.run, state.state, state.step, state.steps, state.version) == ("demo", "finished", 3, 3, 3)
    assert (state.tasks_published, state.rollouts_published, state.dead_letters) == (2, 6, 1)
    assert {role.role: (role.alive, role.pid) for role in state.roles} == {
        "dispatcher": (False, 0),
        "generator": (False, 4243),
        "trainer": (False, 11),
    }


def test_status_during_the_run_says_who_is_alive(going_on: GoingOn, headrace: Headrace) -> None:
    told = headrace("status", "demo", "--dir", going_on.folder.path.parent, "--json")
    state = msgspec.json.decode(told.out, type=RunState)
    assert (state.state, state.step, state.steps) == ("running", 2, 10)
    assert {role.role: role.alive for role in state.roles} == {
        "dispatcher": True,
        "generator": True,
        "trainer": False,
    }


@pytest.mark.parametrize("json", [False, True])
def test_status_names_a_server_that_is_stopped(going_on: GoingOn, headrace: Headrace, json: bool) -> None:
    pid = going_on.server.pid
    stop(pid)
    told = headrace("status", "demo", "--dir", going_on.folder.path.parent, *(["--json"] if json else []))
    assert told.code == 1
    if not json:
        assert re.fullmatch(
            rf"headrace status: nats-server \(process {pid}\) is silent since ..:..:.. UTC \(\d+ s\): "
            rf"it was stopped by a signal; kill -CONT {pid} lets it go on\n",
            told.err,
        )
        return
    state = msgspec.json.decode(told.out, type=UnansweredState)
    assert (state.run, state.state, state.steps) == ("demo", "unanswered", 10)
    assert [(silence.who, silence.pid) for silence in state.silent] == [("nats-server", pid)]


def test_status_says_who_is_silent_and_since_when(
    going_on: GoingOn, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.view.MISSED_BEATS", 0.0)
    told = headrace("status", "demo", "--dir", going_on.folder.path.parent)
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    assert any(line.startswith("SILENT generator/gen-0 (process 4243) is silent since ") for line in lines)
    assert any(line.startswith("generator/gen-0 silent (was ready) 5 4243 mill") for line in lines)


def test_status_blames_the_full_disk_alone(
    going_on: GoingOn, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.view.MISSED_BEATS", 0.0)
    monkeypatch.setattr("headrace.silence.LEAST_FREE_BYTES", 2**62)
    told = headrace("status", "demo", "--dir", going_on.folder.path.parent, "--json")
    (silence,) = msgspec.json.decode(told.out, type=RunState).silent
    assert (told.code, silence.who, silence.pid) == (0, "nats-server", going_on.server.pid)
    assert "nothing can be stored; make room" in silence.why


def test_status_is_readable(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("status", "demo", "--dir", ended.path.parent)
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    for line in (
        "run demo (finished)",
        "step 3 of 3",
        "weights 3",
        "staleness mean 1.25, max 2 (last step)",
        "queue 7 groups open, 4 rollouts held by the trainer",
        "last swap v3 on gen-0, 400 ms",
        "paused no",
        "dead letters 1",
    ):
        assert line in lines
    assert any(line.startswith("generator/gen-0 gone (was ready) 5 4243 mill") for line in lines)


def test_status_through_a_named_server_needs_no_folder(
    going_on: GoingOn, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = going_on.server.address("reader")
    monkeypatch.setenv("HEADRACE_NATS_USER", str(address.user))
    monkeypatch.setenv("HEADRACE_NATS_PASSWORD", str(address.password))
    told = headrace("status", "demo", "--server", address.url, "--dir", tmp_path / "none", "--json")
    state = msgspec.json.decode(told.out, type=RunState)
    assert (state.state, state.step, state.steps) == ("running", 2, None)


def test_damaged_configuration_is_one_line(going_on: GoingOn, headrace: Headrace) -> None:
    (going_on.folder.path / "config.json").write_text("{")
    told = headrace("status", "demo", "--dir", going_on.folder.path.parent)
    assert told.code == 1
    assert "config.json is damaged" in told.err
    assert len(told.err.splitlines()) == 1
