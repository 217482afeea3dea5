"""How the CLI writes payloads, tables, columns, sizes, times and durations.

Sources: cli/util.go, columns/columns.go and internal/util/tables.go of nats-io/natscli, StyleRounded of
jedib0t/go-pretty, and dustin/go-humanize.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def put_body(data: bytes, translate: str) -> None:
    """OutPutMSGBody."""
    if translate:
        parts = shlex.split(translate)
        done = subprocess.run(parts, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            print(f"{done.stdout!r}\nError while translating msg body: exit status {done.returncode}\n")
            return
        data = done.stdout
    elif not data:
        data = b"nil body"
    sys.stdout.flush()
    sys.stdout.buffer.write(data.removesuffix(b"\n") + b"\n\n" + (b"" if data.endswith(b"\n") else b"\n"))
    sys.stdout.flush()


def table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """go-pretty's StyleRounded."""
    widths = [max(len(row[i]) for row in (names, *rows)) for i in range(len(names))]
    rule = ["─" * (width + 2) for width in widths]
    lines = [
        f"│ {' │ '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} │"
        for row in (names, *rows)
    ]
    inner = sum(widths) + 3 * len(widths) - 1
    return "\n".join([
        f"╭{'─' * inner}╮", f"│{title:^{inner}}│", f"├{'┬'.join(rule)}┤", lines[0], f"├{'┼'.join(rule)}┤", *lines[1:],
        f"╰{'┴'.join(rule)}╯",
    ])  # fmt: skip


def columns(rows: Mapping[str, object]) -> str:
    longest = max(len(name) for name in rows)
    return "\n".join(f"{name:>{longest + 2}}: {value}" for name, value in rows.items())


def when(rfc3339: str) -> datetime:
    return datetime.fromisoformat(rfc3339)


def local(rfc3339: str) -> str:
    return f"{when(rfc3339).astimezone():%Y-%m-%d %H:%M:%S}"


def size(count: int) -> str:
    """humanize.IBytes."""
    for unit, power in (("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}" if count < 10 * 1024**power else f"{count // 1024**power} {unit}"
    return f"{count} B"


def duration(length: timedelta) -> str:
    """columns.HumanizeDuration."""
    total = length.total_seconds()
    if total < 1:
        return f"{total * 1000:.0f}ms"
    minutes, hours = int(total) // 60, int(total) // 3600
    if hours:
        return f"{hours}h{minutes % 60}m{int(total) % 60}s"
    return f"{minutes}m{int(total) % 60}s" if minutes else f"{total:.2f}s"


def seconds(text: str) -> float:
    unit = next(unit for unit in ("ms", "s", "m", "h") if text.endswith(unit))
    return float(text.removesuffix(unit)) * UNITS[unit]
