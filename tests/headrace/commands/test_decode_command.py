from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from schemas import Event, encode, event_tag
from tests import examples


def decode(payload: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "headrace", "decode"], input=payload, capture_output=True, check=False)


@pytest.mark.parametrize("event", [*examples.every_event(), examples.failed_rollout()], ids=event_tag)
def test_payload_becomes_one_line_of_json(event: Event) -> None:
    told = decode(encode(event))
    assert told.returncode == 0
    [line] = told.stdout.splitlines()
    assert msgspec.json.decode(line)["type"] == event_tag(event)


def test_packed_arrays_become_lists_and_bytes_hexadecimal() -> None:
    rollout = msgspec.json.decode(decode(encode(examples.rollout())).stdout)
    assert (rollout["tokens"][:2], rollout["logprobs"][:2]) == ([10, 11], [-0.5, -0.25])
    assert msgspec.json.decode(decode(encode(examples.dead(payload=b"\x00\xff"))).stdout)["payload"] == "00ff"


def test_what_is_typed_by_hand_needs_no_header_and_only_the_fields_without_default() -> None:
    told = decode(b'{"type":"control.v1","run":"demo","action":"pause"}')
    assert msgspec.json.decode(told.stdout)["limit"] is None


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"hello", b"{}", encode(examples.rollout())[:-1], b'{"type":"rollout.v9"}', bytes(range(256)),
        b'{"type":"\\u001b[2J\\n"}', b'{"type":"control.v1","run":"a b","action":"pause"}',
    ],
)  # fmt: skip
def test_what_is_no_payload_is_told_in_one_line(payload: bytes) -> None:
    told = decode(payload)
    assert told.returncode == 1
    assert told.stdout == b""
    assert told.stderr.startswith(f"headrace decode: {len(payload)} bytes on standard input".encode())
    assert len(told.stderr.splitlines()) == 1
    assert told.stderr.decode().strip().isprintable(), "it steers no terminal"
