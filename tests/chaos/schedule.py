"""What happens to which process next: a seeded sequence of kills, in which each role comes up often, and of stops."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

ROLES = ("trainer", "generator-0", "generator-1", "dispatcher", "nats-server")
UP, ENGINE = "headrace-up", "engine-0"


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL ``role``, ``delay_s`` seconds after it is back and a step was committed."""

    role: str
    delay_s: float


class Stop(msgspec.Struct, frozen=True):
    """SIGSTOP ``process``, likewise, and SIGCONT ``length_s`` seconds later."""

    process: str
    delay_s: float
    length_s: float


def processes(engine: str) -> tuple[str, ...]:
    """All that can be stopped: the roles, the run itself, and an engine core where the engine has one."""
    return (*ROLES, UP, *((ENGINE,) if engine == "vllm" else ()))


def kills(count: int, seed: int) -> Iterator[Kill]:
    """``count`` kills: rounds in which each role dies once, in random order and at random moments."""
    choice = random.Random(seed)
    order: list[str] = []
    for _ in range(count):
        if not order:
            order = choice.sample(ROLES, len(ROLES))
        yield Kill(order.pop(), choice.uniform(0.0, 1.5))


def stops(count: int | None, length_s: float, seed: int, engine: str) -> list[Stop]:
    """``count`` stops of processes that the seed chooses, no one again before all others; None is each in turn."""
    choice = random.Random(f"stops {seed}")
    everyone = processes(engine)
    if count is None:
        return [Stop(process, choice.uniform(0.0, 1.5), length_s) for process in everyone]
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += choice.sample(everyone, len(everyone))
    return [Stop(process, choice.uniform(0.0, 1.5), length_s) for process in chosen[:count]]


def mixed(kills: Sequence[Kill], stops: Sequence[Stop]) -> list[Kill | Stop]:
    """All of them, the stops spread evenly between the kills: a single one comes in their middle."""
    schedule: list[Kill | Stop] = list(kills)
    for number, stop in reversed(list(enumerate(stops, 1))):
        schedule.insert(len(kills) * number // (len(stops) + 1), stop)
    return schedule
