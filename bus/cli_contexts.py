"""Contexts for the stock ``nats`` CLI, with which it connects to the embedded server and nobody types a password.

Under XDG_CONFIG_HOME the CLI looks for ``nats/context/<name>.json``, and in ``nats/context.txt`` for the name of the
context that it takes where none is named.
Source: the package natscontext of nats-io/jsm.go (context.go, backend_file.go, backend_selector.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from .permissions import BusRole, inbox_prefix

CLI_ROLES: tuple[BusRole, ...] = ("reader", "operator", "admin")
"""Those that people are; the first is taken where none is named, and can change nothing."""


def context_files(url: str, passwords: Mapping[BusRole, str]) -> dict[Path, bytes]:
    """What lies below XDG_CONFIG_HOME: path to content, a context for each of CLI_ROLES."""
    contexts = {Path("nats", "context", f"{role}.json"): _context(url, role, passwords[role]) for role in CLI_ROLES}
    return {**contexts, Path("nats", "context.txt"): CLI_ROLES[0].encode()}


def _context(url: str, role: BusRole, password: str) -> bytes:
    fields = {
        "description": f"Headrace, as {role}",
        "url": url,
        "user": role,
        "password": password,
        # Without it the CLI would listen for answers where no role may.
        "inbox_prefix": inbox_prefix(role),
    }
    return msgspec.json.format(msgspec.json.encode(fields)) + b"\n"
