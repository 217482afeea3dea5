"""One of two ranks in lockstep, run as a program: lockstep_rank.py SILENT_S. Used by test_lockstep.py.

It says ``ready`` when both are there. Rank 0 leaves in order when a line comes; the other does what it is told.
"""

from __future__ import annotations

import logging
import os
import sys

from consumers.trainer.ranks import RankLost, follow
from consumers.trainer.titan import Lockstep, lockstep


def main(silent_s: float) -> None:
    logging.basicConfig(format="%(message)s")
    lockstep.SILENT_S = silent_s
    try:
        with Lockstep() as ranks:
            print("ready", flush=True)
            if ranks.rank == 0:
                sys.stdin.readline()
            else:
                follow(lambda: None, ranks)  # type: ignore[arg-type, return-value]  # nothing is built
    except RankLost as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(float(sys.argv[1]))
