"""The hot swap beside other ways to change weights, for three sizes of models; and what a kept prefix costs and gains.

python -m bench.swap [--repetitions=5] [tiny] [135m] [500m] [prefix]: all of them by default, about 20 minutes.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from bench.report import Reach, Table, arguments, report
from bench.swap import pauses, prefix
from bench.swap.subjects import subject
from bench.trials import REPETITIONS

PARTS = ("tiny", "135m", "500m", "prefix")


def measure(parts: list[str], repetitions: int, root: Path) -> tuple[list[Table], list[Reach]]:
    tables, reaches = [], []
    for part in parts:
        if part == "prefix":
            tables.append(asyncio.run(prefix.measure(root / part)))
            continue
        table, of_part = asyncio.run(pauses.measure(subject(part, root), repetitions, root / f"{part}-weights"))
        tables.append(table)
        if part == "135m":
            reaches += of_part
    return tables, reaches


def main() -> None:
    repetitions, parts = REPETITIONS, []
    for word in arguments():
        if word.startswith("--repetitions="):
            repetitions = int(word.partition("=")[2])
        else:
            parts.append(word)
    with tempfile.TemporaryDirectory() as root:
        tables, reaches = measure(parts or list(PARTS), repetitions, Path(root))
    report(f"Swaps under load, {repetitions} of each way in turn", tables, reaches)


if __name__ == "__main__":
    main()
