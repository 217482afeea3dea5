"""Our parser hears what nats-py's hears, wherever the network cuts it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import nats.protocol.parser
from hypothesis import example, given, settings
from hypothesis import strategies as some

from bus.parser import Parser

SUBJECTS = some.sampled_from([b"a", b"hr.demo.rollout.sums", b"$JS.ACK.demo_ROLLOUTS.trainer.1.2", b"7", b"\xff"])
REPLIES = some.sampled_from([b"", b"_INBOX.trainer.1", b"12"])
BODIES = some.binary(max_size=40) | some.sampled_from([b"\r\n", b"MSG a 1 2\r\nhi\r\n", b"HMSG a 1 12 12\r\n"])


def plain(subject: bytes, sid: int, reply: bytes, payload: bytes) -> bytes:
    return b" ".join(filter(None, [b"MSG", subject, b"%d" % sid, reply, b"%d\r\n%b\r\n" % (len(payload), payload)]))


def with_headers(subject: bytes, sid: int, reply: bytes, payload: bytes, more: bytes) -> bytes:
    headers = b"NATS/1.0\r\nhr-group: " + more.hex().encode() + b"\r\n\r\n"
    sizes = b"%d %d\r\n" % (len(headers), len(headers) + len(payload))
    return b" ".join(filter(None, [b"HMSG", subject, b"%d" % sid, reply, sizes])) + headers + payload + b"\r\n"


NUMBERS = some.integers(1, 12)
COMMANDS = (
    some.builds(plain, SUBJECTS, NUMBERS, REPLIES, BODIES)
    | some.builds(with_headers, SUBJECTS, NUMBERS, REPLIES, BODIES, some.binary(max_size=9))
    | some.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Slow Consumer'\r\n", b'INFO {"max": 1}\r\n'])
)


class Heard:
    """A client that notes what its parser tells it."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def note(*what: Any) -> None:
            self.told.append((name, *what))

        return note


def at_once(hearing: Coroutine[Any, Any, list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """What a coroutine returns that waits for nothing."""
    try:
        hearing.send(None)
    except StopIteration as end:
        told: list[tuple[Any, ...]] = end.value
        return told
    raise AssertionError("it waits")


def heard(kind: type[nats.protocol.parser.Parser], pieces: Iterable[bytes]) -> list[tuple[Any, ...]]:
    async def hear() -> list[tuple[Any, ...]]:
        client = Heard()
        parser = kind(client)
        for piece in pieces:
            await parser.parse(piece)
        return client.told

    return at_once(hear())


@settings(deadline=None)
@given(some.lists(COMMANDS), some.lists(some.integers(1, 60), min_size=1))
@example([plain(b"a", 1, b"", b"x" * 30)], [1])
def test_messages_are_the_same_wherever_they_are_cut(commands: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(commands)
    pieces, at = [], 0
    while at < len(whole):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(whole[at : at + size])
        at += size
    assert heard(Parser, pieces) == heard(nats.protocol.parser.Parser, [whole])


def test_half_a_message_is_forgotten_with_its_connection() -> None:
    async def hear() -> list[tuple[Any, ...]]:
        client = Heard()
        parser = Parser(client)
        await parser.parse(plain(b"a", 1, b"", b"x" * 30)[:-20])
        parser.reset()
        await parser.parse(plain(b"b", 2, b"", b"new"))
        return client.told

    assert at_once(hear()) == [("_process_msg", 2, b"b", b"", b"new", None)]
