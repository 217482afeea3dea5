from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.folder import RunFolder
from headrace.state import RunState
from tests.headrace.conftest import GoingOn, Headrace


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
