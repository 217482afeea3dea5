from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bus import EmbeddedServer
from headrace.folder import RunFolder
from tests.headrace.conftest import Headrace

CONFIG = """
[run]
name = "fresh"
steps = 3
[model]
path = "nowhere"
[[environments]]
name = "reverse"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fresh.toml"
    path.write_text(CONFIG)
    return path


def use(server: EmbeddedServer, role: str, monkeypatch: pytest.MonkeyPatch) -> str:
    address = server.address(role)  # type: ignore[arg-type]
    monkeypatch.setenv("HEADRACE_NATS_USER", str(address.user))
    monkeypatch.setenv("HEADRACE_NATS_PASSWORD", str(address.password))
    return address.url


def test_streams_of_a_run_are_shown(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("topology", "show", "demo", "--dir", ended.path.parent)
    assert told.code == 0
    rows = {line.split()[0]: line.split()[1] for line in told.out.splitlines() if line.startswith("demo_")}
    assert rows == {
        "demo_TASKS": "2", "demo_ROLLOUTS": "6", "demo_LEDGER": "7", "demo_TELEMETRY": "10", "demo_DEAD": "1",
        "demo_CONTROL": "0", "demo_EVALUATIONS": "0",
    }  # fmt: skip


def test_missing_streams_are_shown_then_made_then_in_order(
    server: EmbeddedServer, config: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = use(server, "topology", monkeypatch)
    name = ("--set", "run.name=missing")
    told = headrace("topology", "show", config, *name, "--server", url)
    assert told.code == 1
    assert "missing" in told.out
    assert "stream missing_TASKS does not exist" in told.err
    assert "run headrace topology apply" in told.err
    told = headrace("topology", "apply", config, *name, "--server", url, "--json")
    assert told.code == 0
    assert len(msgspec.json.decode(told.out)["done"]) == 7
    assert "as they should be" in headrace("topology", "apply", config, *name, "--server", url).out
    told = headrace("topology", "show", config, *name, "--server", url, "--json")
    assert told.code == 0
    assert msgspec.json.decode(told.out)["fault"] is None


def test_difference_is_named_and_applied(
    server: EmbeddedServer, config: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (config, "--set", "run.name=differs", "--server", use(server, "topology", monkeypatch))
    assert headrace("topology", "apply", *words).code == 0
    bigger = (*words, "--set", "log.max_gib=5")
    told = headrace("topology", "show", *bigger, "--json")
    assert told.code == 1
    assert "differs_ROLLOUTS: max_bytes" in msgspec.json.decode(told.out)["fault"]
    assert "differs_ROLLOUTS: max_bytes" in headrace("topology", "apply", *bigger).out
    assert headrace("topology", "show", *bigger).code == 0


def test_configuration_without_a_server_or_a_run_asks_for_one(config: Path, tmp_path: Path, headrace: Headrace) -> None:
    told = headrace("topology", "apply", config, "--dir", tmp_path)
    assert told.code == 1
    assert told.err.startswith("headrace topology: no NATS server is named: give --server")
