from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bus import Bus
from headrace.folder import RunFolder
from headrace.inquiry import Place, ask
from schemas import CONTROL, Control
from tests.headrace import recorded
from tests.headrace.conftest import GoingOn, Headrace


def asked(folder: RunFolder) -> list[Control]:
    """The log's control events."""

    async def question(bus: Bus, goes_on: bool) -> list[Control]:
        return [logged.event async for logged in bus.read(CONTROL) if isinstance(logged.event, Control)]

    return ask(Place(folder.name, folder), question)


@pytest.mark.parametrize("action", ["pause", "resume", "stop"])
def test_what_was_asked_is_in_the_log(action: str, going_on: GoingOn, headrace: Headrace) -> None:
    told = headrace(action, "demo", "--dir", going_on.folder.path.parent)
    assert told.code == 0
    assert told.out.startswith("run demo ")
    [control] = asked(going_on.folder)
    assert (control.action, control.limit) == (action, None)
    assert control.by


def test_status_shows_pause_and_stop(going_on: GoingOn, headrace: Headrace) -> None:
    def state() -> str:
        told = headrace("status", "demo", "--dir", going_on.folder.path.parent, "--json")
        return str(msgspec.json.decode(told.out)["state"])

    assert state() == "running"
    for action, expected in (("pause", "paused"), ("resume", "running"), ("stop", "stopping")):
        assert headrace(action, "demo", "--dir", going_on.folder.path.parent).code == 0
        assert state() == expected


def test_limit_is_set_by_pause(going_on: GoingOn, headrace: Headrace) -> None:
    told = headrace("pause", "demo", "--limit", "16", "--dir", going_on.folder.path.parent, "--json")
    assert msgspec.json.decode(told.out) == {"run": "demo", "action": "limit", "limit": 16, "sequence": 1}
    assert [(each.action, each.limit) for each in asked(going_on.folder)] == [("limit", 16)]


def test_run_that_has_ended_cannot_be_stopped(tmp_path: Path, headrace: Headrace) -> None:
    folder = recorded.make_run(tmp_path, steps=9)
    told = headrace("stop", "demo", "--dir", tmp_path)
    assert told.code == 1
    assert told.err == "headrace stop: run 'demo' is not going on: there is nothing to stop\n"
    assert asked(folder) == []


def test_interrupted_run_can_be_paused_before_it_goes_on(tmp_path: Path, headrace: Headrace) -> None:
    folder = recorded.make_run(tmp_path, steps=9)
    assert headrace("pause", "demo", "--dir", tmp_path).code == 0
    assert [each.action for each in asked(folder)] == ["pause"]


def test_operator_at_a_named_server_needs_no_folder(
    going_on: GoingOn, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = going_on.server.address("operator")
    monkeypatch.setenv("HEADRACE_NATS_USER", str(address.user))
    monkeypatch.setenv("HEADRACE_NATS_PASSWORD", str(address.password))
    told = headrace("resume", "demo", "--server", address.url, "--dir", tmp_path / "none")
    assert told.code == 0
    assert [each.action for each in asked(going_on.folder)] == ["resume"]


def test_who_may_not_command_is_told_so(going_on: GoingOn, headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    address = going_on.server.address("reader")
    monkeypatch.setenv("HEADRACE_NATS_USER", str(address.user))
    monkeypatch.setenv("HEADRACE_NATS_PASSWORD", str(address.password))
    told = headrace("stop", "demo", "--server", address.url)
    assert told.code == 1
    assert "role reader may not publish to 'hr.demo.control'" in told.err
    assert asked(going_on.folder) == []


@pytest.mark.parametrize(
    ("name", "expected"), [("ann", "ann"), ("DOMAIN\\ann b", "DOMAIN-ann-b"), ("--", "someone"), ("ü", "someone")]
)
def test_who_asks_has_a_name_that_a_connection_may_have(
    name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.commands import control

    monkeypatch.setattr("getpass.getuser", lambda: name)
    assert control._user() == expected
