"""Which process dies next: a seeded sequence in which each role comes up often."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

ROLES = ("trainer", "generator-0", "generator-1", "dispatcher", "nats-server")


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL ``role``, ``delay_s`` seconds after it is back and a step was committed."""

    role: str
    delay_s: float


def kills(count: int, seed: int) -> Iterator[Kill]:
    """``count`` kills: rounds in which each role dies once, in random order and at random moments."""
    choice = random.Random(seed)
    order: list[str] = []
    for _ in range(count):
        if not order:
            order = choice.sample(ROLES, len(ROLES))
        yield Kill(order.pop(), choice.uniform(0.0, 1.5))
