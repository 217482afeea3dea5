"""The processes of a run on one machine, by name."""

from __future__ import annotations

import time

import psutil

from headrace.silence import silences
from headrace.view import RunView
from tests.chaos.schedule import ENGINE, ROLES, UP

WORDS = {
    "trainer": ("headrace", "train"),
    "dispatcher": ("headrace", "dispatch"),
    "generator-0": ("headrace", "generate", "--id", "0"),
    "generator-1": ("headrace", "generate", "--id", "1"),
}
TELEMETRY_ID = {
    "trainer": "trainer/trainer",
    "generator-0": "generator/0",
    "generator-1": "generator/1",
    UP: "supervisor/up",
}


class Family:
    """``headrace up`` and all that it has started, as ``view`` knows them."""

    def __init__(self, up: int, view: RunView) -> None:
        self._up = psutil.Process(up)
        self._view = view
        self.names = (*ROLES, UP)

    def told_as(self, name: str) -> str:
        """What status calls it."""
        match name:
            case "nats-server":
                return name
            case "dispatcher":
                return next(f"{role.role}/{role.id}" for role in self._view.of_role("dispatcher"))
            case "engine-0":
                return "generator/0 engine"
        return TELEMETRY_ID[name]

    def ready(self, name: str) -> psutil.Process | None:
        """Its process, once it has said that it is ready."""
        if name == UP:
            return self._up
        if name == ENGINE:
            generator = self.ready("generator-0")
            cores = [] if generator is None else [each for each in generator.children() if _is_core(each)]
            return cores[0] if cores else None
        process = self._find(name)
        return process if process and (name == "nats-server" or self._is_ready(name, process.pid)) else None

    def pids(self) -> dict[str, int | None]:
        """Process id of each that is there."""
        return {name: None if (process := self._find(name)) is None else process.pid for name in ROLES}

    def silent(self) -> list[str]:
        """Who is silent now, by what the log has."""
        return [each.who for each in silences(self._view, time.time())]

    def _find(self, name: str) -> psutil.Process | None:
        for process in self._up.children(recursive=True):
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if name == "nats-server" and words and words[0].endswith("nats-server"):
                return process
            wanted = WORDS.get(name)
            if wanted and wanted[0] in words and all(word in words for word in wanted):
                return process
        return None

    def _is_ready(self, name: str, pid: int) -> bool:
        known = self._view.roles.get(TELEMETRY_ID.get(name, "")) or next(iter(self._view.of_role(name)), None)
        return known is not None and known.pid == pid and known.state == "ready"


def _is_core(process: psutil.Process) -> bool:
    return process.name().startswith("VLLM::")
