from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from schemas import Event, encode, event_tag
from tests import examples


def decode(payload: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "headrace", "decode"], input=payload, capture_output=True, check=False)


@pytest.mark.parametrize("event", [examples.rollout(), examples.step(), examples.dead()], ids=event_tag)
def test_payload_becomes_one_line_of_json(event: Event) -> None:
    told = decode(encode(event))
    assert told.returncode == 0
    [line] = told.stdout.splitlines()
    assert msgspec.json.decode(line)["type"] == event_tag(event)


@pytest.mark.parametrize("payload", [b"", b"hello", b"{}", encode(examples.rollout())[:-1]])
def test_what_is_no_payload_is_told_in_one_line(payload: bytes) -> None:
    told = decode(payload)
    assert told.returncode == 1
    assert told.stdout == b""
    assert told.stderr.startswith(f"headrace decode: {len(payload)} bytes on standard input".encode())
    assert len(told.stderr.splitlines()) == 1
