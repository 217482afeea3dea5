"""Where a server is, and who we are to it."""

from __future__ import annotations

import msgspec


class Address(msgspec.Struct, frozen=True):
    """Where a NATS server is and who we are to it."""

    url: str
    """``nats://host:port``, or several separated by commas."""
    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Address(url={self.url!r}, user={self.user!r})"
