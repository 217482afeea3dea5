"""Contexts for the nats CLI. That they work is shown in tests/test_nats_cli.py."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from bus import EmbeddedServer
from bus.cli_contexts import CLI_ROLES

PLACE = Path("cli", "nats")
"""Of the CLI's files, in a server's folder."""


def context(folder: Path, role: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / PLACE / "context" / f"{role}.json").read_bytes())
    return found


def test_each_person_has_a_context_for_its_owner_alone(tmp_path: Path) -> None:
    server = EmbeddedServer.start(tmp_path)
    server.stop()
    for role in CLI_ROLES:
        address, found = server.address(role), context(tmp_path, role)
        assert (found["url"], found["user"], found["password"]) == (server.url, role, address.password)
        assert found["inbox_prefix"] == f"_INBOX.{role}"
        assert stat.S_IMODE((tmp_path / PLACE / "context" / f"{role}.json").stat().st_mode) == 0o600


def test_the_reader_is_taken_where_none_is_named(tmp_path: Path) -> None:
    EmbeddedServer.start(tmp_path).stop()
    assert (tmp_path / PLACE / "context.txt").read_text() == "reader"


def test_contexts_follow_the_server_to_another_port(tmp_path: Path) -> None:
    first = EmbeddedServer.start(tmp_path)
    first.stop()
    (tmp_path / "server.json").unlink()
    second = EmbeddedServer.start(tmp_path)
    second.stop()
    found = context(tmp_path, "reader")
    assert found["url"] == second.url
    assert first.address("reader").password != found["password"] == second.address("reader").password
