"""What a step takes besides forward, backward and optimizer; whether memory is flat; what the log takes on the disk.

python -m bench.overheads [DEMO_STEPS SMOLLM2_STEPS MEMORY_STEPS] [--json]: 30, 5 and 500 unless given; 0 leaves a part
out. Whole runs by ``headrace up``, three seeds each, with the stand-in engine and all else real. About 12 minutes on
two quiet cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.overheads import log_size, memory, steps
from bench.report import Reach, Table, arguments, report

DEFAULTS = (30, 5, 500)


def main() -> None:
    given = [int(word) for word in arguments()]
    demo_steps, smollm2_steps, memory_steps = [*given, *DEFAULTS[len(given) :]]
    cases = [
        steps.Case(name="demo", config=Path("configs/demo.toml"), steps=demo_steps, reach=0.10),
        steps.Case(name="SmolLM2", config=Path("configs/smollm2.toml"), steps=smollm2_steps, reach=0.03),
    ]
    tables: list[Table] = []
    reaches: list[Reach] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        for case in cases:
            if case.steps:
                table, reach = steps.measure(case, Path(root))
                tables.append(table)
                reaches.append(reach)
        if memory_steps:
            table, flat = memory.measure(memory_steps, Path(root))
            tables.append(table)
            reaches += flat
    tables.append(log_size.measure())
    report("What surrounds a step", tables, reaches)


if __name__ == "__main__":
    main()
