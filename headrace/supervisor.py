"""The supervisor: starts the roles as processes, restarts those that die, and ends them all in time.

Each role is the leader of its own process group, so that a terminal's Ctrl-C reaches only us and what a role
started can be ended with it; and each is tied to us, so that none is left when we are killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from schemas import RunError

from .children import signal_group, tied_to
from .roles import FINAL, UNREACHABLE
from .settings import SupervisorSettings

log = logging.getLogger("headrace.supervisor")
FIRST_BACK_OFF_S, GREATEST_BACK_OFF_S = 0.5, 15.0
HEADRACE = (sys.executable, "-m", "headrace")
LAST_WORDS = 12
"""Lines of a role's log that are shown when it is given up."""
KILL_WAIT_S = 1.0


class RoleCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How one role process is started."""

    name: str
    """``trainer``, ``generator-0``, ...: also the name of its log file."""
    arguments: Sequence[str]
    """Of the supervisor's program."""
    environment: dict[str, str]
    """Variables set on top of the supervisor's own."""
    essential: bool = False
    """Whether the run goes on until this role has ended well; it is finished when all such roles have."""


class Supervisor:
    """Runs role processes until the essential ones are finished, one is given up, or ``stop`` is set."""

    def __init__(
        self,
        commands: Sequence[RoleCommand],
        logs: Path,
        settings: SupervisorSettings,
        program: Sequence[str] = HEADRACE,
    ) -> None:
        self._commands = commands
        self._program = program
        self._logs = logs
        self._settings = settings
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._unfinished = {command.name for command in commands if command.essential}
        self._finished = asyncio.Event()
        self._restarts = 0
        self.on_restart: Callable[[str, int, float], None] = lambda name, code, delay_s: None
        """Told of each death: role, exit code, seconds until it is started again."""

    async def run(self, stop: asyncio.Event) -> None:
        """Raises RunError with a role's last words when it is given up."""
        self._logs.mkdir(parents=True, exist_ok=True)
        keeping = [asyncio.create_task(self._keep(command)) for command in self._commands]
        endings = [asyncio.create_task(stop.wait()), asyncio.create_task(self._finished.wait())]
        try:
            pending: set[asyncio.Task[object]] = {*keeping, *endings}
            while not any(ending.done() for ending in endings):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (*keeping, *endings):
                task.cancel()
            await asyncio.gather(*keeping, *endings, return_exceptions=True)
            await self._end_all()

    @property
    def gauges(self) -> dict[str, float]:
        """``roles``: processes that run; ``restarts``: deaths so far after which one was started again."""
        return {"roles": len(self._processes), "restarts": self._restarts}

    async def _keep(self, command: RoleCommand) -> None:
        """Run one role, again and again, until it ends well."""
        quick_deaths, back_off_s = 0, FIRST_BACK_OFF_S
        while True:
            began = time.monotonic()
            code = await self._run_once(command)
            if code == 0:
                self._unfinished.discard(command.name)
                if command.essential and not self._unfinished:
                    self._finished.set()
                return
            lived_s = time.monotonic() - began
            if lived_s > self._settings.quick_death_s:
                quick_deaths, back_off_s = 0, FIRST_BACK_OFF_S
            elif code != UNREACHABLE:  # a server that is away is no fault of the role: it is tried until it is back
                quick_deaths += 1
            if code == FINAL or quick_deaths >= self._settings.quick_deaths:
                raise RunError(self._given_up(command, code, quick_deaths))
            self._restarts += 1
            self.on_restart(command.name, code, back_off_s)
            await asyncio.sleep(back_off_s)
            back_off_s = min(2 * back_off_s, GREATEST_BACK_OFF_S)

    async def _run_once(self, command: RoleCommand) -> int:
        with self._log_file(command).open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *self._program, *command.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | command.environment,
                start_new_session=True,
                preexec_fn=tied_to(os.getpid()),
            )  # fmt: skip
        self._processes[command.name] = process
        try:
            return await process.wait()
        finally:
            if process.returncode is not None:
                # What it started dies with it; a generator's engine would hold its memory and its cores.
                signal_group(process.pid, signal.SIGKILL)
                del self._processes[command.name]

    async def _end_all(self) -> None:
        processes = list(self._processes.values())
        for process in processes:
            signal_group(process.pid, signal.SIGTERM)
            signal_group(process.pid, signal.SIGCONT)  # A process that a signal stopped takes no SIGTERM.
        await _all_ended(processes, self._settings.stop_grace_s)
        for process in processes:
            signal_group(process.pid, signal.SIGKILL)
        await _all_ended(processes, KILL_WAIT_S)

    def _log_file(self, command: RoleCommand) -> Path:
        return self._logs / f"{command.name}.log"

    def _given_up(self, command: RoleCommand, code: int, deaths: int) -> str:
        path = self._log_file(command)
        words = path.read_text(errors="replace").splitlines()[-LAST_WORDS:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        times = "starting it again would not help" if code == FINAL else f"{deaths} quick deaths in a row"
        return "\n".join(
            [f"{command.name} ended with {how} and is given up: {times}. Its last words ({path}):", *words]
        )


async def _all_ended(processes: Sequence[asyncio.subprocess.Process], timeout_s: float) -> None:
    waits = [asyncio.create_task(process.wait()) for process in processes]
    if waits:
        await asyncio.wait(waits, timeout=timeout_s)
    for wait in waits:
        wait.cancel()
