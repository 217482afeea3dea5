"""``nats req``, ``sub`` and ``pub``: req_command.go, sub_command.go and pub_command.go in cli/."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from .connection import TIMEOUT_S, Failed, api
from .form import duration, local, put_body, seconds

REPLY_TIMEOUT_S = 0.3


async def req(client: Client, arguments: argparse.Namespace) -> None:
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    if not arguments.raw:
        tell(f'Sending request on "{arguments.subject}"')
    began, timeout_s = time.monotonic(), TIMEOUT_S
    rtts: list[float] = []
    await client.publish(arguments.subject, arguments.body.encode(), reply=inbox)
    while True:
        try:
            message = await answers.next_msg(timeout_s)
        except nats.errors.TimeoutError:
            return
        rtts.append(time.monotonic() - began)
        if message.headers and message.headers.get("Status") == "503":
            return tell("No responders are available")
        if not arguments.raw:
            tell(f"Received with rtt {rtts[-1] * 1000:.6f}ms")
            if message.headers:
                for name, value in headers(message):
                    tell(f"{name}: {value}")
                tell("")
        put_body(message.data, arguments.translate)
        if not arguments.wait_for_empty or not message.data:
            return
        timeout_s = sum(rtts) / len(rtts) + REPLY_TIMEOUT_S


async def sub(client: Client, arguments: argparse.Namespace) -> None:
    if arguments.stream:
        return await _sub_stream(client, arguments)
    stop, counter = asyncio.Event(), 0

    async def take(message: Msg) -> None:
        nonlocal counter
        counter += 1
        print(f'[#{counter}] Received on "{message.subject}"')
        put_message(message, arguments)

    for subject in arguments.subjects:
        await client.subscribe(subject, cb=take)
    await client.flush()
    tell(f"Subscribing on {', '.join(arguments.subjects)} ")
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


async def _sub_stream(client: Client, arguments: argparse.Namespace) -> None:
    """An ephemeral pull consumer without acknowledgements, of nats.go."""
    stream, name = arguments.stream, f"x{os.getpid()}"
    await api(client, f"STREAM.INFO.{stream}")
    start = datetime.now(UTC) - timedelta(seconds=seconds(arguments.since))
    config = {
        "name": name, "ack_policy": "none", "deliver_policy": "by_start_time", "opt_start_time": start.isoformat(),
        "filter_subject": ">", "headers_only": arguments.headers_only, "inactive_threshold": 300_000_000_000,
    }  # fmt: skip
    await api(client, f"CONSUMER.CREATE.{stream}.{name}.>", {"stream_name": stream, "config": config})
    tell(f"Subscribing to subject > since {duration(timedelta(seconds=seconds(arguments.since)))} ")
    inbox = client.new_inbox()
    pulled = await client.subscribe(inbox)
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", b'{"batch":500}', reply=inbox)
    counter = 0
    while True:
        try:
            message = await pulled.next_msg(seconds(arguments.wait))
        except nats.errors.TimeoutError:
            return
        meta, counter = message.metadata, counter + 1
        print(
            f"[#{counter}] Received JetStream message: stream: {stream} seq: {meta.sequence.stream:,} / pending: "
            f"{meta.num_pending:,} / subject: {message.subject} / time: {local(meta.timestamp.isoformat())}"
        )
        put_message(message, arguments)
        if arguments.terminate_at_end and meta.num_pending == 0:
            return


async def pub(client: Client, arguments: argparse.Namespace) -> None:
    tell(f'Published {len(arguments.body)} bytes to "{arguments.subject}"')
    try:
        ack = json.loads((await client.request(arguments.subject, arguments.body.encode(), TIMEOUT_S)).data)
    except nats.errors.Error as error:
        raise Failed(f"{error}".lower() or "timeout") from None
    tell(f"Stored in Stream: {ack['stream']} Sequence: {ack['seq']:,}")


def tell(line: str) -> None:
    """Go's log with Ltime."""
    print(f"{datetime.now():%H:%M:%S} {line}", file=sys.stderr, flush=True)


def headers(message: Msg) -> Iterator[tuple[str, str]]:
    for name, value in (message.headers or {}).items():
        yield getattr(name, "value", name), value  # nats-py names the server's own ones by an enumeration.


def put_message(message: Msg, arguments: argparse.Namespace) -> None:
    """PrintHeadersAndBody."""
    if not arguments.subjects_only:
        for name, value in headers(message):
            print(f"{name}: {value}")
        print()
        if not arguments.headers_only:
            put_body(message.data, arguments.translate)
    sys.stdout.flush()
