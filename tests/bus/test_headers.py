"""Headers are read as nats-py reads them, and only when somebody looks."""

from __future__ import annotations

import nats.aio.client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bus.headers import Headers

NAMES = some.from_regex(r"[A-Za-z0-9-]{1,12}", fullmatch=True)
LINES = some.lists(some.binary(max_size=30) | NAMES.map(lambda name: f"{name}: x".encode())).map(b"\r\n".join)


@settings(deadline=None)
@given(LINES)
def test_headers_are_heard_as_nats_py_hears_them(lines: bytes) -> None:
    assert Headers(b"NATS/1.0\r\n" + lines) == nats.aio.client.Client._parse_header_lines(lines)


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 0\r\n\r\n",
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 7\r\n\r\n",
        b"NATS/1.0\r\nStatus: 404\r\nName: two words \r\n\r\n",
    ],
)
async def test_what_the_server_says_itself_is_heard_as_nats_py_hears_it(block: bytes) -> None:
    assert Headers(block) == await nats.aio.client.Client()._process_headers(block)  # type: ignore[no-untyped-call]


def test_headers_are_read_when_somebody_looks_and_compare_as_a_mapping() -> None:
    headers = Headers(b"NATS/1.0\r\nhr-group: 12\r\nhr-env: sums\r\n\r\n")
    assert headers._fields is None
    assert headers["hr-group"] == "12"
    assert headers == {"hr-group": "12", "hr-env": "sums"}
    assert headers.get("hr-member") is None
    assert dict(headers) == {"hr-group": "12", "hr-env": "sums"}
    assert Headers() == {}
