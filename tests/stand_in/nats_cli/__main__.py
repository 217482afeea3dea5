"""A stand-in for the ``nats`` CLI, which no package registry has: the commands that docs/nats-cli.md shows.

It finds its context where the CLI does, makes the same JetStream requests and subscriptions with the same rights,
and prints what the CLI prints. A command or option that the documentation does not use is refused.

Sources, read in 2026: nats-io/natscli c778a5c (cli/stream_command.go, consumer_command.go, sub_command.go,
req_command.go, pub_command.go, util.go; columns/columns.go; internal/util/tables.go) and nats-io/jsm.go caea3c5
(natscontext/, manager.go, streams.go, snapshots.go).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from .connection import Failed, connect
from .consumer import consumer_info, consumer_report
from .messages import pub, req, sub
from .stream import stream_backup, stream_get, stream_ls, stream_restore, stream_subjects


def parser() -> argparse.ArgumentParser:
    """Only what the documentation uses."""
    top = argparse.ArgumentParser(prog="nats", allow_abbrev=False)
    top.add_argument("--context")
    top.add_argument("-s", "--server")
    below = top.add_subparsers(required=True)

    def command(group: Any, name: str, act: Any, *positional: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = group.add_parser(name, allow_abbrev=False)
        made.set_defaults(act=act)
        for each in positional:
            made.add_argument(each)
        return made

    stream = below.add_parser("stream").add_subparsers(required=True)
    command(stream, "ls", stream_ls)
    get = command(stream, "get", stream_get, "stream")
    get.add_argument("id", nargs="?")
    get.add_argument("-S", "--last-for")
    command(stream, "subjects", stream_subjects, "stream").add_argument("filter", nargs="?", default=">")
    command(stream, "backup", stream_backup, "stream", "target")
    command(stream, "restore", stream_restore, "file")
    consumer = below.add_parser("consumer").add_subparsers(required=True)
    command(consumer, "report", consumer_report, "stream")
    command(consumer, "info", consumer_info, "stream", "consumer")
    request = command(below, "req", req, "subject", "body")
    request.add_argument("--raw", action="store_true")
    request.add_argument("--wait-for-empty", action="store_true")
    subscribe = command(below, "sub", sub)
    subscribe.add_argument("subjects", nargs="*")
    subscribe.add_argument("--stream")
    subscribe.add_argument("--since")
    subscribe.add_argument("--wait")
    subscribe.add_argument("-T", "--terminate-at-end", action="store_true")
    subscribe.add_argument("--headers-only", action="store_true")
    subscribe.add_argument("--subjects-only", action="store_true")
    command(below, "pub", pub, "subject", "body").add_argument("-J", "--jetstream", action="store_true", required=True)
    for each in (get, request, subscribe):
        each.add_argument("--translate", default="")
    return top


async def _run(arguments: argparse.Namespace) -> int:
    client = await connect(arguments)
    try:
        await arguments.act(client, arguments)
    except Failed as error:
        print(f"nats: error: {error}", file=sys.stderr)
        return 1
    finally:
        refused = client.refused  # type: ignore[attr-defined]
        await client.close()
        for each in refused:
            print(f">>> Unexpected NATS error: {each}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_run(parser().parse_args())))
