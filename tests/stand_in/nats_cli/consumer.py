"""``nats consumer``: cli/consumer_command.go."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

from nats.aio.client import Client

from .connection import api
from .form import columns, duration, local, table, when


async def consumer_report(client: Client, arguments: argparse.Namespace) -> None:
    stream = arguments.stream
    state = (await api(client, f"STREAM.INFO.{stream}"))["state"]
    consumers = (await api(client, f"CONSUMER.LIST.{stream}", {"offset": 0}))["consumers"]
    rows = []
    for each in consumers:
        pending = each["num_pending"]
        share = f" / {100 * pending // max(state['messages'], 1)}%" if pending else ""
        config = each["config"]
        rows.append(
            (each["name"], "Pull", config["ack_policy"].capitalize(), ack_wait(config), f"{each['num_ack_pending']:,}",
             f"{each['num_redelivered']:,}", f"{pending:,}{share}",
             f"{each['ack_floor']['stream_seq']:,}", config["metadata"]["_nats.req.level"], "")
        )  # fmt: skip
    title = f"Consumer report for {stream} with {len(consumers)} consumers"
    names = ("Consumer", "Mode", "Ack Policy", "Ack Wait", "Ack Pending", "Redelivered", "Unprocessed", "Ack Floor",
             "API Level", "Cluster")  # fmt: skip
    print(table(title, names, rows))


async def consumer_info(client: Client, arguments: argparse.Namespace) -> None:
    for _ in range(2):  # LoadConsumer, and the latest state for showing it.
        state = await api(client, f"CONSUMER.INFO.{arguments.stream}.{arguments.consumer}")
    config = state["config"]
    print(f"Information for Consumer {state['stream_name']} > {state['name']} created {local(state['created'])}\n")
    print("Configuration:\n")
    print(
        columns({
            "Name": config["name"], "Pull Mode": "true", "Deliver Policy": config["deliver_policy"].capitalize(),
            "Ack Policy": config["ack_policy"].capitalize(),
            "Ack Wait": ack_wait(config),
            "Replay Policy": config["replay_policy"].capitalize(),
        })
    )  # fmt: skip
    print("\nState:\n")
    print(
        columns({
            "Last Delivered Message": _place(state, "delivered", "Last delivery"),
            "Acknowledgment Floor": _place(state, "ack_floor", "Last Ack"),
            "Outstanding Acks": f"{state['num_ack_pending']:,}",
            "Redelivered Messages": f"{state['num_redelivered']:,}",
            "Unprocessed Messages": f"{state['num_pending']:,}",
            "Waiting Pulls": f"{state['num_waiting']:,} of maximum {config['max_waiting']:,}",
        })
    )  # fmt: skip


def ack_wait(config: dict[str, Any]) -> str:
    return duration(timedelta(microseconds=config["ack_wait"] / 1000))


def _place(state: dict[str, Any], name: str, last: str) -> str:
    place = state[name]
    ago = f" {last}: {duration(when(state['ts']) - when(place['last_active']))} ago" if "last_active" in place else ""
    return f"Consumer sequence: {place['consumer_seq']:,} Stream sequence: {place['stream_seq']:,}{ago}"
