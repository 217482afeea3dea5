"""Rollouts from a generator's structs to a trainer's packed arrays: ours, what other systems do, and the bare limit.

make bench-transport [ARGS='[REPETITIONS [MILLIONS_OF_TOKENS]] [--json]']: 5 repetitions of 4 million tokens for each
way and length, about 8 minutes on two cores. ``redis-server`` is a Debian package, and the Python clients are the
extra ``bench``; ways that lack what they need are left out, with a line that says so.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from bench.report import Reach, Table, arguments, report
from bench.trials import REPETITIONS
from bus import keep_freed_memory

from . import blocking, kills, speed
from .blocking import Blocked
from .kills import VICTIMS, Left, Victim
from .roles import WAYS, way
from .speed import Speed
from .way import Missing

LENGTHS = [1024, 8192, 32_768, 131_072]
LIMIT_FROM = 8192
"""From this length on the bare round trip is the measure."""
KILLED_OF = 400
BLOCKED_LENGTHS, BLOCKED_STEPS = [8192, 32_768], 60
CLIENTS = {"pyzmq": "zmq", "redis": "redis", "hiredis": "hiredis", "psutil": "psutil"}
"""Packages, and what they are imported as."""


def available(root: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Ways that can be measured here, and why others cannot."""
    usable, missing = [], []
    for key in WAYS:
        try:
            way(key).broker(root / f"try-{key}").stop()
        except Missing as error:
            missing.append((way(key).name, str(error)))
        else:
            usable.append(key)
    return usable, missing


def speed_table(found: dict[str, list[Speed]]) -> Table:
    rows = []
    for place, length in enumerate(LENGTHS):
        for key, speeds in found.items():
            s = speeds[place]
            rows.append((f"{length}", way(key).name, s.mb_per_s, s.rollouts_per_s, s.cpu_s_per_gb, s.cpu_words))
    columns = ("tokens", "way", "MB/s", "rollouts/s", "CPU s/GB", "of which writer, reader, broker")
    return Table(columns, rows)


def kill_table(found: dict[str, dict[Victim, Left | None]]) -> Table:
    rows = [
        (way(key).name, *("no such process" if left is None else str(left) for left in lefts.values()))
        for key, lefts in found.items()
    ]
    return Table(("way: read of those said to be safe", *(f"kill -9 of the {victim}" for victim in VICTIMS)), rows)


def blocked_table(found: list[Blocked]) -> Table:
    rows: list[tuple[str | float, ...]] = []
    for each in found:
        rows.append((f"{each.length}", "one call", each.call_ms(50), each.call_ms(99), each.call_ms(100)))
        rows.append((f"{each.length}", "a step's calls", each.step_ms(50), each.step_ms(99), each.step_ms(100)))
    return Table(("tokens", "the trainer's thread is blocked by", "median ms", "99th percentile", "longest"), rows)


def reaches(
    found: dict[str, list[Speed]], lost: dict[str, dict[Victim, Left | None]], blocked: list[Blocked]
) -> list[Reach]:
    """What the project promises; the worst length decides."""

    def cpu_ratios(other: str) -> list[float]:
        pairs = zip(found[other], found["headrace"], strict=True)
        return [theirs.cpu_s_per_gb.median / ours.cpu_s_per_gb.median for theirs, ours in pairs]

    long = [place for place, length in enumerate(LENGTHS) if length >= LIMIT_FROM]
    shares = [found["headrace"][place].mb_per_s.median / found["bare"][place].mb_per_s.median for place in long]
    names = [f"{LENGTHS[place]} tokens" for place in long]
    made = [Reach(f"MB/s of the bare round trip, {n}", 0.8, s, "higher") for n, s in zip(names, shares, strict=True)]
    for other, words, reach in (
        ("json-lines", "JSON lines", 3.0),
        ("redis-lists", "Redis with pickled lists", 3.0),
        ("redis-arrays-aof", "Redis with pickled arrays in a file", 1.0),
        ("redis-arrays", "Redis with pickled arrays in memory", 1.0),
    ):
        if other in found:
            made += [
                Reach(f"CPU a token of {words} / ours, {length} tokens", reach, ratio, "higher")
                for length, ratio in zip(LENGTHS, cpu_ratios(other), strict=True)
            ]
    made += [Reach(f"blocked in one call, p99 ms, {b.length} tokens", 10.0, b.call_ms(99)) for b in blocked]
    made += [Reach(f"blocked in a step, p99 ms, {b.length} tokens", 10.0, b.step_ms(99)) for b in blocked]
    ours = [left for left in lost["headrace"].values() if left is not None]
    made.append(Reach("rollouts lost, twice or unreadable after our kills", 0, sum(left.faults for left in ours)))
    return made


def main() -> None:
    given = arguments()
    repetitions = int(given[0]) if given else REPETITIONS
    tokens = int(1e6 * float(given[1])) if len(given) > 1 else 4 * 2**20
    if find_spec("psutil") is None:
        sys.exit("psutil is not installed: pip install 'headrace[bench]'")
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="bench-transport-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        keys, missing = available(root)
        for left_out, why in missing:
            print(f"left out: {left_out}: {why}", file=sys.stderr)
        found = speed.measure(keys, LENGTHS, root, tokens=tokens, repetitions=repetitions)
        lost = kills.measure([key for key in keys if key != "bare"], root, KILLED_OF)
        blocked = [blocking.measure(root, length, BLOCKED_STEPS) for length in BLOCKED_LENGTHS]
    packages = ", ".join(f"{package} {version(package)}" for package, name in CLIENTS.items() if find_spec(name))
    report(
        f"Rollouts from structs to packed arrays, {repetitions} repetitions of {tokens / 1e6:.1f} M tokens",
        [("clients", packages), *missing, speed_table(found), kill_table(lost), blocked_table(blocked)],
        reaches(found, lost, blocked),
    )


if __name__ == "__main__":
    main()
