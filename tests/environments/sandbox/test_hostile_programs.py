"""Programs that mean harm end in an error, within their limits, and touch nothing: behind each kind of wall."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from environments.sandbox import Interpreter, Isolation, Limits, Ran

LIMITS = Limits(cpu_s=1, wall_s=30.0, memory_mib=256, output_chars=1000)
SHORT = msgspec.structs.replace(LIMITS, wall_s=4.0)
"""For a program that only the wall-clock limit ends: others need their time on a busy machine."""
LATEST_S = 60.0
"""No program may take longer, on however busy a machine: its wall-clock limit, its start, and the end from outside."""
SECRET = "aseedofakey"
TIME = "it took longer than 1 s of processor time or 30 s in all"
SHORT_TIME = "it took longer than 1 s of processor time or 4 s in all"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a program is to leave alone."""

    folder: Path
    key: Path
    server: socket.socket

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    def untouched(self) -> bool:
        try:
            self.server.accept()
        except BlockingIOError:
            full = Path("/tmp/full").exists() or Path("/full").exists()
            return self.key.read_text() == SECRET and list(self.folder.iterdir()) == [self.key] and not full
        return False


HOSTILE = {
    "fork bomb": ("import os\nwhile True: os.fork()", "PermissionError"),
    "fork bomb by libc": ("import ctypes\nfor i in range(100): assert ctypes.CDLL(None).fork() >= 0", "AssertionError"),
    "threads": ("import _thread, time\n_thread.start_new_thread(time.sleep, (9,))", "can't start new thread"),
    "endless loop": ("while True: pass", TIME),
    "loop in C": ("9 ** 9 ** 9", TIME),
    "endless loop that ignores every signal": (
        "import signal\nfor n in range(1, 32): n in (9, 19) or signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        TIME),
    "endless sleep": ("import time\nwhile True: time.sleep(3600)", SHORT_TIME),
    "raises its own limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))", "not allowed to raise"),
    "raises its own limits by libc": (
        "import ctypes\nassert ctypes.CDLL(None).setrlimit(0, (ctypes.c_long * 2)(99, 99)) == 0", "AssertionError"),
    "10 GB": ("x = bytearray(10 * 10**9)", "MemoryError"),
    "10 GB in pieces": ("x = []\nwhile True: x.append(bytearray(10**7))", "MemoryError"),
    "deep recursion": ("def f(): f()\nf()", "RecursionError"),
    "deep expression": ("eval('-' * 10**6 + '1')", "Error"),
    "crash": ("import ctypes\nctypes.string_at(0)", "it was ended by SIGSEGV"),
    "reads the keys": ("print(open('{key}').read())", "Error"),
    "reads the keys by libc": ("import ctypes\nassert ctypes.CDLL(None).open(b'{key}', 0) >= 0", "AssertionError"),
    "reads the keys by a lower level": ("import posix\nposix.open('{key}', 0)", "Error"),
    "lists the keys": ("import os\nprint(os.listdir('{folder}'))", "Error"),
    "reads ssh's keys": ("import os\nprint(os.listdir('/root/.ssh'))", "Error"),
    "reads the environment": ("import os\nprint(os.environ)\nos.environ['HEADRACE_SECRET']", "KeyError"),
    "reads the environment of its parent": (
        "import os\nprint(open(f'/proc/{pid}/environ').read())", "Error"),
    "reads the memory of its parent": (
        "import ctypes\nassert ctypes.CDLL(None).syscall(310, {pid}, 0, 0, 0, 0, 0) >= 0", "AssertionError"),
    "traces its parent": ("import ctypes\nassert ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0", "AssertionError"),
    "looks for descriptors left open": (
        "import os\nfor n in range(3, 9):\n try: os.write(n, b'')\n except OSError: continue\n print(n)\nos.read(9, 1)",
        "Bad file descriptor"),
    "connects": ("import _socket\n_socket.socket().connect(('127.0.0.1', {port}))", "Error"),
    "connects by libc": ("import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) >= 0", "AssertionError"),
    "writes outside": ("open('{folder}/mine', 'w').write('x')", "Error"),
    "overwrites the keys": ("import os\nos.truncate('{key}', 0)", "Error"),
    "removes the keys": ("import os\nos.unlink('{key}')", "Error"),
    "fills the disk": ("f = open('/tmp/full', 'w')\nwhile True: f.write('x' * 10**6)", "Error"),
    "fills the disk here": ("f = open('full', 'w')\nwhile True: f.write('x' * 10**6)", "Error"),
    "prints endlessly": ("while True: print('x' * 1000)", "it printed more than 1,000 characters"),
    "prints one endless line": ("while True: print('x', end='')", "it printed more than 1,000 characters"),
    "kills its parent": ("import os, signal\nos.kill({pid}, signal.SIGKILL)", "Error"),
    "kills everything": ("import os, signal\nos.kill(-1, signal.SIGKILL)", "Error"),
    "kills its group": ("import os, signal\nos.killpg(0, signal.SIGKILL)", "Error"),
    "becomes a daemon": ("import os\nif os.fork() == 0:\n os.setsid()\n os.fork()\n while True: pass", "Error"),
    "leaves its session": ("import os\nos.setsid()", "Error"),
    "runs a shell": ("import os\nos.execv('/bin/sh', ['sh', '-c', 'touch {folder}/mine'])", "Error"),
    "becomes root": ("import os\nos.setuid(0)", "Error"),
    "mounts": ("import ctypes\nassert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0", "AssertionError"),
    "makes namespaces": ("import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0", "AssertionError"),
    "rewrites the sandbox": (
        "import sys\nf = sys._getframe()\nwhile f.f_back: f = f.f_back\nf.f_globals['report'](code=0)\n1 / 0",
        "ZeroDivisionError"),
    "is no program": ("\0\udc80", "Error"),
    "is too long": ("x = 1\n" * 100_000, "the program is longer than 100,000 characters"),
}  # fmt: skip


@pytest.fixture(scope="module", params=["namespaces", "filter"])
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    isolation: Isolation = request.param
    return Interpreter(LIMITS, isolation)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A key file, a server, and a secret in the environment; all readable to this user."""
    key = tmp_path / "trainer.nk"
    key.write_text(SECRET)
    tmp_path.chmod(0o777)
    key.chmod(0o666)
    monkeypatch.setenv("HEADRACE_SECRET", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield Target(folder=tmp_path, key=key, server=server)


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_program_ends_in_an_error_and_touches_nothing(
    name: str, interpreter: Interpreter, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, error = HOSTILE[name]
    if "{" in program:
        program = program.format(key=target.key, folder=target.folder, port=target.port, pid=os.getpid())
    began = time.monotonic()
    with monkeypatch.context() as patched:
        if error == SHORT_TIME:
            patched.setattr(interpreter, "limits", SHORT)
        ran = await interpreter.run(program)
    assert ran.failed
    assert error in f"{ran.output}{ran.problem}"
    assert time.monotonic() - began < LATEST_S
    assert SECRET not in ran.output
    assert len(ran.output) <= LIMITS.output_chars
    assert not [line for line in ran.output.splitlines() if line.isdigit()]  # a descriptor that could be written to
    assert target.untouched()
    assert await interpreter.run("6 * 7") == Ran(output="42\n")
