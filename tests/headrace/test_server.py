from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bus import EmbeddedServer
from headrace import server as servers
from headrace.folder import RunFolder
from headrace.server import address_from_environment, environment_for, serving, turn
from schemas import ConfigError, RunError
from tests.headrace.conftest import GoingOn


def test_named_server_comes_with_the_environments_credentials(
    ended: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(servers.USER, "ann")
    monkeypatch.setenv(servers.PASSWORD, "secret")
    with serving(ended, "reader", "nats://mill:4222") as served:
        assert (served.address.url, served.address.user, served.address.password) == (
            "nats://mill:4222",
            "ann",
            "secret",
        )
        assert served.goes_on


def test_key_and_authority_come_from_the_environment_and_go_to_a_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(servers.NKEY, "reader/nkey")
    monkeypatch.setenv(servers.CA, "ca.pem")
    address = address_from_environment("tls://one:4222,tls://two:4222")
    assert (address.nkey, address.ca, address.role) == (Path("reader/nkey"), Path("ca.pem"), "reader")
    assert environment_for(address) == {
        servers.URL: "tls://one:4222,tls://two:4222",
        servers.USER: "",
        servers.PASSWORD: "",
        servers.NKEY: str(tmp_path / "reader" / "nkey"),
        servers.CA: str(tmp_path / "ca.pem"),
    }


def test_variable_that_is_empty_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(servers.NKEY, "")
    monkeypatch.setenv(servers.CA, "")
    address = address_from_environment("nats://mill:4222")
    assert (address.nkey, address.ca) == (None, None)


def test_no_server_at_all_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(servers.URL, raising=False)
    with pytest.raises(ConfigError, match="give --server nats://HOST:PORT or set HEADRACE_NATS_URL"):
        address_from_environment()


def test_address_survives_the_way_to_a_child(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_for(server.address("trainer")).items():
        monkeypatch.setenv(name, value)
    assert address_from_environment() == server.address("trainer")


def test_a_childs_address_has_nothing_of_the_shell_that_started_us(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {servers.NKEY: "mine/nkey", servers.CA: "ca.pem", servers.USER: "ann"}.items():
        monkeypatch.setenv(name, value)
    for name, value in environment_for(server.address("trainer")).items():
        monkeypatch.setenv(name, value)
    assert address_from_environment() == server.address("trainer")


def test_live_server_is_used_and_left_alone(going_on: GoingOn) -> None:
    with serving(going_on.folder, "reader") as served:
        assert served.address == going_on.server.address("reader")
        assert served.goes_on
    assert going_on.server.running


def test_readers_of_an_ended_run_take_turns(ended: RunFolder) -> None:
    command = [sys.executable, "-m", "headrace", "show", "demo", "1/2", "--json", "--dir", str(ended.path.parent)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    told = [reader.communicate() for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * 4, told
    assert len(set(told)) == 1


def test_reader_that_does_not_end_is_not_waited_for_for_ever(ended: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "TURN_S", 0.1)
    with serving(ended, "reader") as first:
        assert not first.goes_on
        # A second one must not take the first one's server for a run that goes on.
        with pytest.raises(RunError, match="has been reading the log of run 'demo'"), serving(ended, "reader"):
            raise AssertionError("two had the turn at once")
    with turn(ended):
        pass
