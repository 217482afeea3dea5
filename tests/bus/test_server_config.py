"""The server's configuration as text, and the one that ships, as the server itself reads them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bus import BUS_ROLES
from bus.server import find_binary
from bus.server_config import LARGEST_MESSAGE, server_config, users_config
from tests.real_server import DEPLOY, RealServer


def faults_in(config: Path) -> str:
    """What the server says to a configuration; empty where it takes it."""
    told = subprocess.run([find_binary(), "-t", "--config", config], capture_output=True, text=True)
    return "" if told.returncode == 0 else told.stderr


@pytest.mark.parametrize("password", ["plain", 'with " and \\', "$variable", "{ brace }", "# hash"])
def test_embedded_server_understands_any_password(tmp_path: Path, password: str) -> None:
    text = server_config(
        name="n", port=4222, store=tmp_path / "a # folder", run="demo", passwords=dict.fromkeys(BUS_ROLES, password)
    )
    (tmp_path / "nats.conf").write_text(text)
    assert faults_in(tmp_path / "nats.conf") == ""


def test_users_are_understood_by_the_server_that_includes_them(tmp_path: Path) -> None:
    public = "U" + "A" * 55
    (tmp_path / "users.conf").write_text(users_config({"reader": public}, ["one", "two"]))
    (tmp_path / "nats.conf").write_text('include "users.conf"')
    # It looks at the key, so it has read the users.
    assert "Not a valid public nkey" in faults_in(tmp_path / "nats.conf")


@pytest.mark.parametrize("config", ["nats.conf", "tls.conf", "container.conf"])
def test_shipped_configuration_is_valid_beside_its_keys(tmp_path: Path, config: str) -> None:
    RealServer(tmp_path / "keys", ["demo"])
    for file in ("cert.pem", "key.pem"):
        (tmp_path / "keys" / "server" / file).write_text("")
    faults = faults_in(tmp_path / "keys" / config)
    assert "error parsing X509 certificate/key pair" in faults if config == "tls.conf" else faults == ""


def test_shipped_configuration_takes_the_largest_message_that_the_embedded_one_takes() -> None:
    assert f"\nmax_payload: {LARGEST_MESSAGE}\n" in (DEPLOY / "nats.conf").read_text()


def test_monitoring_which_asks_for_no_key_is_open_to_a_container_s_network_alone() -> None:
    listens = re.compile(r'^http: "(.*)"$', re.MULTILINE)
    found = {file.name: listens.findall(file.read_text()) for file in DEPLOY.glob("*.conf")}
    assert found == {"nats.conf": ["127.0.0.1:8222"], "tls.conf": [], "container.conf": ["0.0.0.0:8222"]}
