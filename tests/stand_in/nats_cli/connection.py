"""The connection of the context that the CLI finds, and requests to JetStream on it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

TIMEOUT_S = 5.0


class Failed(Exception):
    """What the CLI ends with, after ``nats: error:``."""


async def connect(arguments: argparse.Namespace) -> Client:
    """As prepareHelper: the context, and on top of it what the command line says."""
    context = {} if arguments.server else load_context(arguments.context)
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    options: dict[str, Any] = {"user": context["user"], "password": context["password"]} if context else {}
    prefix = context.get("inbox_prefix") or "_INBOX"
    client = await nats.connect(
        arguments.server or context["url"],
        inbox_prefix=prefix.encode(),
        error_cb=on_error,
        allow_reconnect=False,
        **options,
    )
    client.refused = refused  # type: ignore[attr-defined]
    return client


def load_context(name: str | None) -> dict[str, str]:
    """natscontext: ``$XDG_CONFIG_HOME/nats/context/NAME.json``, NAME from ``context.txt`` where none is given."""
    root = Path(os.environ["XDG_CONFIG_HOME"], "nats")
    name = name or (root / "context.txt").read_text().strip()
    context: dict[str, str] = json.loads((root / "context" / f"{name}.json").read_bytes())
    return context


async def api(client: Client, request: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """jsm.go's jsonRequest."""
    try:
        message = await client.request(f"$JS.API.{request}", json.dumps(body).encode() if body else b"", TIMEOUT_S)
    except nats.errors.Error:
        raise Failed(f"context deadline exceeded ($JS.API.{request})") from None
    answer: dict[str, Any] = json.loads(message.data)
    if "error" in answer:
        raise Failed(f"{answer['error']['description']} ({answer['error']['err_code']})")
    return answer
