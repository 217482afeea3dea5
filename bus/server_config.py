"""What a NATS server's configuration says, as text: all of the embedded server's, and the users of any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from schemas import MAX_PAYLOAD_BYTES

from .permissions import BusRole, permissions
from .topology import WRAPPING_BYTES

MAX_FILE_STORE = 1 << 50
"""Streams reserve their max_bytes against this, and are refused (10047) where it is used up. The server's own
choice is three quarters of the free disk, which a few limits exceed; real space is looked at when it starts."""
MAX_MEMORY_STORE = 64 * 1024 * 1024
LARGEST_MESSAGE = MAX_PAYLOAD_BYTES + WRAPPING_BYTES


def server_config(*, name: str, port: int, store: Path, run: str, passwords: Mapping[BusRole, str]) -> str:
    """A user for each role in ``passwords``, with that role's permissions in ``run`` (``*``: in every run)."""
    users = [_user(role, f"user: {role}, password: {_text(secret)}", run) for role, secret in passwords.items()]
    return f"""\
server_name: {_text(name)}
listen: "127.0.0.1:{port}"
max_payload: {LARGEST_MESSAGE}
ping_interval: "20s"
ping_max: 3
jetstream {{
  store_dir: {_text(str(store))}
  max_memory_store: {MAX_MEMORY_STORE}
  max_file_store: {MAX_FILE_STORE}
}}
{_authorization(users)}"""


def users_config(public_keys: Mapping[BusRole, str], runs: Sequence[str]) -> str:
    """A user for each key, with its role's permissions in ``runs``: a file for a server's configuration to include."""
    users = [_user(role, f"nkey: {key}", *runs) for role, key in public_keys.items()]
    return f"""\
# Who may connect, and what each role may do in {", ".join(runs)}; all else is denied. Written by `headrace keys new`,
# which writes it anew: change nothing here.
{_authorization(users)}"""


def _authorization(users: Sequence[str]) -> str:
    return f"authorization {{\n  users: [\n{''.join(users)}  ]\n}}\n"


def _user(role: BusRole, who: str, *runs: str) -> str:
    allowed = msgspec.json.format(msgspec.json.encode(permissions(role, *runs)), indent=2).decode()
    return f"    # {role}\n    {{ {who}, permissions: {allowed} }}\n"


def _text(value: str) -> str:
    """Quoted for the server's configuration language, which takes JSON's strings."""
    return msgspec.json.encode(value).decode()
