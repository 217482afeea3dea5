"""The configuration of the embedded NATS server, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from schemas import MAX_PAYLOAD_BYTES

from .permissions import BusRole, permissions
from .topology import WRAPPING_BYTES

MAX_FILE_STORE = 1 << 50
"""Streams reserve their max_bytes against this, and are refused (10047) where it is used up. The server's own
choice is three quarters of the free disk, which a few limits exceed; real space is looked at when it starts."""
MAX_MEMORY_STORE = 64 * 1024 * 1024


def server_config(*, name: str, port: int, store: Path, run: str, passwords: Mapping[BusRole, str]) -> str:
    """A user for each role in ``passwords``, with that role's permissions in ``run`` (``*``: in every run)."""
    users = "\n".join(_user(role, password, run) for role, password in passwords.items())
    return f"""\
server_name: {_text(name)}
listen: "127.0.0.1:{port}"
max_payload: {MAX_PAYLOAD_BYTES + WRAPPING_BYTES}
ping_interval: "20s"
ping_max: 3
jetstream {{
  store_dir: {_text(str(store))}
  max_memory_store: {MAX_MEMORY_STORE}
  max_file_store: {MAX_FILE_STORE}
}}
authorization {{
  users: [
{users}
  ]
}}
"""


def _user(role: BusRole, password: str, run: str) -> str:
    allowed = msgspec.json.encode(permissions(role, run)).decode()
    return f"    {{ user: {_text(role)}, password: {_text(password)}, permissions: {allowed} }}"


def _text(value: str) -> str:
    """Quoted for the server's configuration language, which takes JSON's strings."""
    return msgspec.json.encode(value).decode()
