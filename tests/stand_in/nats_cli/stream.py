"""``nats stream``: cli/stream_command.go, and streams.go of jsm.go."""

from __future__ import annotations

import argparse
import base64
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nats.aio.client import Client

from .backup import back_up, restore
from .connection import Failed, api
from .form import columns, duration, local, put_body, size, table, when


async def stream_ls(client: Client, arguments: argparse.Namespace) -> None:
    answer = await api(client, "STREAM.LIST", {"offset": 0})
    rows = []
    for info in sorted(answer["streams"], key=lambda each: each["state"]["bytes"]):
        state, config = info["state"], info["config"]
        silent = when(info["ts"]) - when(state["last_ts"]) if state["last_seq"] else None
        rows.append(
            (config["name"], config.get("description", ""), local(info["created"]), f"{state['messages']:,}",
             size(state["bytes"]), "never" if silent is None else duration(silent))
        )  # fmt: skip
    print(table("Streams", ("Name", "Description", "Created", "Messages", "Size", "Last Message"), rows))


async def stream_get(client: Client, arguments: argparse.Namespace) -> None:
    stream = arguments.stream
    await api(client, f"STREAM.INFO.{stream}")
    query = {"last_by_subj": arguments.last_for} if arguments.last_for else {"seq": int(arguments.id)}
    item = (await api(client, f"STREAM.MSG.GET.{stream}", query))["message"]
    at = when(item["time"])
    stored, ago = f"{at:%Y-%m-%d %H:%M:%S.%f} +0000 UTC", duration(datetime.now(UTC) - at)
    print(f"Item: {stream}#{item['seq']} received {stored} ({ago}) on Subject {item['subject']}\n\nHeaders:")
    block = base64.b64decode(item.get("hdrs", "")).decode()
    for line in block.split("\r\n")[1:]:
        if line:
            name, _, value = line.partition(":")
            print(f"  {name}: {value.strip()}")
    print()
    put_body(base64.b64decode(item.get("data", "")), arguments.translate)


async def stream_subjects(client: Client, arguments: argparse.Namespace) -> None:
    stream = arguments.stream
    await api(client, f"STREAM.INFO.{stream}")
    answer = await api(client, f"STREAM.INFO.{stream}", {"offset": 0, "subjects_filter": arguments.filter})
    counts: dict[str, int] = answer["state"].get("subjects", {})
    rows = [(name, f"{count:,}") for name, count in sorted(counts.items(), key=lambda each: each[1])]
    print(table(f"{len(rows)} Subjects in stream {stream}", ("Subject", "Count"), rows))


async def stream_backup(client: Client, arguments: argparse.Namespace) -> None:
    info = await api(client, f"STREAM.INFO.{arguments.stream}")
    print(f'Starting backup of Stream "{arguments.stream}" with {size(info["state"]["bytes"])}\n', flush=True)
    began = time.monotonic()
    received = await back_up(client, arguments.stream, Path(arguments.target))
    took = duration(timedelta(seconds=time.monotonic() - began))
    print(
        f"Received {size(received.bytes)} compressed data in {received.chunks} chunks "
        f'for stream "{arguments.stream}" in {took}, {size(received.uncompressed)} uncompressed'
    )


async def stream_restore(client: Client, arguments: argparse.Namespace) -> None:
    folder = Path(arguments.file)
    name = json.loads((folder / "backup.json").read_bytes())["config"]["name"]
    try:
        await api(client, f"STREAM.INFO.{name}")
    except Failed:
        pass
    else:
        raise Failed(f'Stream "{name}" already exist')
    print(f'Starting restore of Stream "{name}" from file "{arguments.file}"\n', flush=True)
    began = time.monotonic()
    await restore(client, folder)
    print(f'Restored stream "{name}" in {round(time.monotonic() - began)}s\n')
    state = (await api(client, f"STREAM.INFO.{name}"))["state"]
    print(f"Information for Stream {name}\n\nState:\n")
    print(
        columns(
            {"Messages": f"{state['messages']:,}", "Bytes": size(state["bytes"]), "Last Sequence": state["last_seq"]}
        )
    )
