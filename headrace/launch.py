"""Several ranks of one trainer on this machine: started together, and ended together.

``torchrun`` does the same for several machines; Headrace's own trainer on one needs no more than this. Each rank is a
``headrace train`` with torchrun's environment variables, in the process group of the one who starts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from consumers.trainer import LISTENING, RANK_LOST, TrainerSettings
from schemas import ConfigError

from .children import tied_to

log = logging.getLogger("headrace.trainer")
HEADRACE = (sys.executable, "-m", "headrace")
LOOPBACK = "lo"
"""The interface at which ranks of one machine meet."""
LEAVE_S = 4.0
"""Time that ranks have to end by themselves once one has: supervisor and containers give 5 to 10 s to all of it."""


def own_rank(settings: TrainerSettings) -> int | None:
    """Number of this process among the ranks that were started together; None where it was started alone.

    Raises ConfigError where there are not as many as ``settings`` ask for.
    """
    if "RANK" not in os.environ:
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))
    if size != settings.ranks:
        raise ConfigError(
            f"{size} ranks were started (WORLD_SIZE), and trainer.data_parallel {settings.data_parallel} * "
            f"tensor_parallel {settings.tensor_parallel} * context_parallel {settings.context_parallel} is "
            f"{settings.ranks}: start as many, or change one of the three"
        )
    return rank


def launch(arguments: Sequence[str], size: int, program: Sequence[str] = HEADRACE) -> int:
    """Run ``program`` with ``arguments`` as ``size`` ranks, from the main thread; returns the exit code.

    That is rank 0's, or the code of the rank that ended all of them by failing.
    """
    return asyncio.run(_Launch([*program, *arguments], size).run())


class _Launch:
    def __init__(self, command: Sequence[str], size: int) -> None:
        self._command, self._size = command, size
        self._processes: list[asyncio.subprocess.Process] = []

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signal, number)
        waits: dict[asyncio.Task[int], int] = {}
        try:
            with _listening() as listening:
                for rank in range(self._size):
                    self._processes.append(await self._start(rank, listening))
                    waits[asyncio.create_task(self._processes[rank].wait())] = rank
            pending = set(waits)
            while True:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                codes = {waits[task]: task.result() for task in done}
                if 0 in codes or any(codes.values()):
                    return await self._end(codes, pending)
        finally:
            self._signal(signal.SIGKILL)
            for task in waits:
                await task

    async def _start(self, rank: int, listening: socket.socket) -> asyncio.subprocess.Process:
        """``listening``: what rank 0 inherits, and no other."""
        port = listening.getsockname()[1]
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self._size, "MASTER_PORT": port}
        if rank == 0:
            place[LISTENING] = listening.fileno()
        # Otherwise gloo listens at the address of the host's name, and NCCL at any that it finds.
        interfaces = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
        return await asyncio.create_subprocess_exec(
            *self._command,
            env=interfaces
            | os.environ
            | {"MASTER_ADDR": "127.0.0.1"}
            | {name: str(value) for name, value in place.items()},
            pass_fds=(listening.fileno(),) if rank == 0 else (),
            preexec_fn=tied_to(os.getpid()),
        )

    async def _end(self, codes: dict[int, int], pending: set[asyncio.Task[int]]) -> int:
        """End the others once one has ended; ``codes``: of those that have, by rank."""
        failed = {rank: code for rank, code in codes.items() if rank and code}
        for rank, code in failed.items():
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            log.error("rank %d (process %d) %s: all ranks end", rank, self._processes[rank].pid, how)
        if failed:
            self._send(self._processes[0], RANK_LOST)
            for process in self._processes[1:]:
                self._send(process, signal.SIGTERM)
            self._signal(signal.SIGCONT)  # A process that a signal stopped takes no SIGTERM.
        if pending:
            await asyncio.wait(pending, timeout=LEAVE_S)
        code = codes[0] if 0 in codes else next(iter(failed.values()))
        return code if code >= 0 else 128 - code

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            self._send(process, number)

    @staticmethod
    def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _listening() -> socket.socket:
    """Where rank 0's store is to listen, at a port that is free.

    Torch would bind it to all interfaces, whatever MASTER_ADDR says, and the store asks nobody who he is.
    """
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    return listening
