"""Weights of which only what changed is sent, against whole ones: how much changes, and how long each takes.

python -m bench.delta [STEPS]: SmolLM2-135M in bfloat16 is trained STEPS (5, the most) recorded steps at three learning
rates. What the highest makes is sent to one and to eight receivers, whole and as deltas, through NATS on a loopback
that is shaped to 100 Mbit/s and to 1 Gbit/s. Of the file, every tenth megabyte is sent at 100 Mbit/s and every second
one at 1 Gbit/s, so that it ends today. About 8 minutes on two cores, with 6 GB of memory and 8 GB of disk.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.delta.changes import Changes, measure
from bench.delta.network import NoNamespace, namespace
from bench.report import Reach, Table, arguments, report
from bench.trials import REPETITIONS, Trials

RATES = {1e-6: 1.0, 3e-6: 2.0, 1e-5: 5.0}
"""Learning rate to the most that a delta should have of the whole file's bytes, in percent."""
LINES = {100: 10, 1000: 2}
"""Mbit/s to how many megabytes of the file one is sent of."""
RECEIVERS = (1, 8)
MEGABYTE = 1e6


def transfers(folder: Path) -> list[tuple[str, int, Trials, Trials]]:
    """Line, receivers, and seconds whole and as deltas. Raises NoNamespace."""
    rows = []
    with namespace() as name:
        for mbit, portion in LINES.items():
            for receivers in RECEIVERS:
                words = [
                    sys.executable,
                    "-m",
                    "bench.delta.transfer",
                    str(folder),
                    str(mbit),
                    str(receivers),
                    str(portion),
                ]
                done = subprocess.run(["ip", "netns", "exec", name, *words], stdout=subprocess.PIPE, check=True)
                found = msgspec.json.decode(done.stdout, type=dict[str, list[float]])
                rows.append(
                    (
                        f"{mbit} Mbit/s, 1/{portion} of the file",
                        receivers,
                        Trials(found["whole"]),
                        Trials(found["delta"]),
                    )
                )
    return rows


def changes_table(found: dict[float, Changes]) -> Table:
    columns = ("learning rate", "weights changed, %", "delta, % of the file", "delta, MB", "building, s", "applying, s")
    rows = [
        (
            f"{lr:g}",
            each.share,
            each.delta_share,
            Trials([size / MEGABYTE for size in each.delta_bytes.values]),
            each.build_s,
            each.apply_s,
        )
        for lr, each in found.items()
    ]
    return Table(columns, rows)


def main() -> None:
    steps = int(next(iter(arguments()), REPETITIONS))
    with tempfile.TemporaryDirectory() as root:
        found = {lr: measure(lr, steps, Path(root) if lr == max(RATES) else None) for lr in RATES}
        measured: list[tuple[str, str] | Table] = [changes_table(found)]
        reaches = [
            Reach(f"delta at learning rate {lr:g}, % of the file", most, found[lr].delta_share.median)
            for lr, most in RATES.items()
        ]
        try:
            rows = transfers(Path(root))
        except NoNamespace as error:
            measured.append(("sending at 100 Mbit/s and 1 Gbit/s", f"not measured: {error}"))
        else:
            columns = ("line", "receivers", "whole, s", "delta, s", "times faster")
            faster = [whole.median / delta.median for _, _, whole, delta in rows]
            measured.append(
                Table(
                    columns, [(*row[:1], str(row[1]), *row[2:], ratio) for row, ratio in zip(rows, faster, strict=True)]
                )
            )
            reaches += [
                Reach(f"times faster, {line}, {receivers} receivers", 1.0, ratio, "higher")
                for (line, receivers, _, _), ratio in zip(rows, faster, strict=True)
            ]
    report("deltas of SmolLM2-135M in bfloat16", measured, reaches)


if __name__ == "__main__":
    main()
