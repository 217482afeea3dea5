"""Where a server is, and who we are to it."""

from __future__ import annotations

from pathlib import Path

import msgspec

TLS = "tls://"


class Address(msgspec.Struct, frozen=True):
    """Where a NATS server is and who we are to it: a user with a password, the owner of a key, or nobody."""

    url: str
    """``nats://host:port`` or ``tls://host:port``; several of them, one cluster's, separated by commas."""
    user: str | None = None
    password: str | None = None
    nkey: Path | None = None
    """File with the seed of a user's key. ``headrace keys new`` writes ``<role>/nkey``."""
    ca: Path | None = None
    """File with the certificate of the authority that signed the server's; None takes those the system trusts."""

    def __repr__(self) -> str:
        return f"Address(url={self.url!r}, user={self.user!r}, nkey={self.nkey!r}, ca={self.ca!r})"

    @property
    def servers(self) -> list[str]:
        """Each server's own url."""
        return [each.strip() for each in self.url.split(",")]

    @property
    def tls(self) -> bool:
        """Whether the connection is to be encrypted."""
        return self.url.startswith(TLS)

    @property
    def role(self) -> str | None:
        """What the credentials are called: the user, or the folder of the key. None where there are none."""
        return self.user if self.nkey is None else self.nkey.parent.name

    @property
    def identity(self) -> str:
        """Who we are, in a message's words."""
        if self.nkey is not None:
            return f"the owner of key {self.nkey}"
        return f"user {self.user}" if self.user else "nobody"
