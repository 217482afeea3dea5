"""``headrace decode``: a payload on standard input to one line of JSON, for ``nats ... --translate``."""

from __future__ import annotations

import argparse
import sys

from schemas import EventInvalid, HeadraceError, as_json, decode

HELP = {"decode": "a payload on standard input to one line of JSON"}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    # No shared options here: they would load the bus, and this is started once for each message.
    parser.epilog = 'example:\n  nats stream view demo_ROLLOUTS --translate "headrace decode"'
    parser.add_argument("--json", action="store_true", help="print JSON: it always does")


def run(arguments: argparse.Namespace) -> int:
    payload = sys.stdin.buffer.read()
    try:
        event = decode(payload)
    except EventInvalid as error:
        # Parts of the payload may be quoted in it, and the payload may be anything: it must steer no terminal.
        reason = error.reason.encode("unicode_escape").decode()
        raise HeadraceError(f"{len(payload)} bytes on standard input are no payload of an event: {reason}") from None
    print(as_json(event).decode())
    return 0
