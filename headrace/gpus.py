"""Which of this machine's GPUs each role of ``headrace up`` may use. Not run on a machine that has several yet."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from .config import RunConfig

VARIABLE = "CUDA_VISIBLE_DEVICES"
ASK_S = 20.0
"""A driver that nobody has used since the machine started takes some seconds to answer."""


def gpus_here() -> list[str]:
    """The GPUs that this process may use, each as the variable names it; none where there is no NVIDIA driver."""
    named = os.environ.get(VARIABLE)
    if named is None:
        named = ",".join(_all().split())
    names = [name.strip() for name in named.split(",")]
    return [name for name in names if name and not name.startswith("-")]  # CUDA takes -1 for none


def _all() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return ""  # Roles will find none either.


def wanted(config: RunConfig) -> list[int]:
    """How many GPUs each role needs: the trainer, one for each rank; then every generator, for all its copies."""
    generator = config.generator.tensor_parallel_size * config.generator.data_parallel_size
    return [config.trainer.ranks, *[generator] * config.generator.count]


def share_out(gpus: Sequence[str], wanted: Sequence[int]) -> list[list[str]]:
    """As many of ``gpus`` for each as it wants, all different; begun again with the first where they do not suffice.

    Who wants more than there are gets all, and says itself what it lacks.
    """
    shares, begin = [], 0
    for count in wanted:
        count = min(count, len(gpus))
        shares.append([gpus[(begin + number) % len(gpus)] for number in range(count)])
        begin += count
    return shares


def scarce(gpus: Sequence[str], wanted: Sequence[int]) -> str | None:
    """What is to be said where roles must share GPUs; None where each has its own, or there is none at all."""
    if not gpus or sum(wanted) <= len(gpus):
        return None
    return (
        f"{sum(wanted)} GPUs are wanted ({wanted[0]} for the trainer, {sum(wanted[1:])} for generators) and "
        f"{len(gpus)} are here: some roles share one, so generator.gpu_memory_utilization must leave them room"
    )
