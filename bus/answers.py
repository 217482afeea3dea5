"""How a request ends: what the server says, and what it means when it says nothing."""

from __future__ import annotations

import msgspec

from schemas import BusError, PublishFailed

from .received import Received

UNAVAILABLE = 503
"""Code of a fault: a cluster without a leader says so for a moment."""
NOT_NOW = 10008
"""More closely: JetStream is temporarily unavailable."""


class Denied(PublishFailed):
    """The server's permissions do not let this role send to a subject."""


class Unanswered(BusError):
    """A request has no answer; whether it was carried out is not known."""

    def __init__(self, reason: str, *, no_responders: bool = False) -> None:
        super().__init__(reason)
        self.no_responders = no_responders


class ApiError(BusError):
    """JetStream answered a request with an error."""

    def __init__(self, subject: str, fault: Fault) -> None:
        super().__init__(f"{subject}: {fault}")
        self.fault = fault


class Fault(msgspec.Struct, frozen=True):
    """The error part of a JetStream answer. Codes: nats-server, server/errors.json."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    def __str__(self) -> str:
        return f"{self.description} ({self.err_code or self.code})"


class Collected(msgspec.Struct):
    """Several answers to one request, and how they ended."""

    messages: list[Received]
    status: str = ""
    """Of the server's closing message; empty where there was none."""
    description: str = ""
    pending: int = 0
    """How many more there are, as that message says."""
    lost: str = ""
    """Why answers may be missing; empty where they are not."""
