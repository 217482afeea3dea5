"""What the kernel keeps a program from: resource limits, namespaces and a filter of system calls, by ctypes alone.

This module is loaded by ``inside.py`` in the sandbox's own process, from its folder: it imports nothing of Headrace.
The filter is a list of what may be called, not of what may not: a program computes and writes to what is open
already. It opens no file, makes no socket, process or thread and sends no signal, so there is nothing left to guard
one by one. Namespaces are a second wall, for the case that the first has a hole.
"""

import contextlib
import ctypes
import os
import resource
import struct

NOBODY = 65534
"""User and group that a program runs as where this process may choose."""

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # seccomp(2); refuse: fail with EPERM
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of a classic BPF program
_SIGKILL = 9

_EMPTY = b"/tmp"
"""Where the empty root is mounted; only this process and its children see it there."""

_MACHINES = {"x86_64": (0, 0xC000003E, 126), "aarch64": (1, 0xC00000B7, 91)}
"""For each: column of _ALLOWED, its AUDIT_ARCH, number of capset."""

_ALLOWED = {
    # memory
    "brk": (12, 214), "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "munmap": (11, 215),
    # what is open already
    "close": (3, 57), "dup": (32, 23), "fstat": (5, 80), "lseek": (8, 62), "read": (0, 63), "write": (1, 64),
    # time
    "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "gettimeofday": (96, 169),
    "nanosleep": (35, 101), "times": (100, 153), "getrusage": (98, 165),
    # itself
    "exit": (60, 93), "exit_group": (231, 94), "futex": (202, 98), "getegid": (108, 177), "geteuid": (107, 175),
    "getgid": (104, 176), "getpid": (39, 172), "getrandom": (318, 278), "gettid": (186, 178), "getuid": (102, 174),
    "restart_syscall": (219, 128), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124), "sigaltstack": (131, 132),
}  # fmt: skip
"""System calls that a program may make: their numbers on x86_64 and on aarch64."""

_libc = ctypes.CDLL(None, use_errno=True)


def limit_resources(*, cpu_s: int, memory_bytes: int) -> None:
    """Bounds that hold without any privilege. Files cannot grow, so a disk cannot be filled."""
    limits = {
        resource.RLIMIT_CPU: cpu_s,  # seconds; soft and hard are the same: SIGKILL, which nobody can ignore
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 16,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))


def enter_namespaces() -> None:
    """Own users, mounts, processes, network and IPC, for this process and its next child. Raises OSError.

    Without privileges, a user namespace of its own gives the right to make the others.
    """
    uid, gid = os.getuid(), os.getgid()  # before: within the new namespace nobody is anybody yet
    flags = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    _call("unshare", flags if uid == 0 else flags | _CLONE_NEWUSER)
    if uid != 0:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {gid} 1")
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _call("mount", b"none", _EMPTY, b"tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, b"size=4k")


def enter_empty_root() -> None:
    """See no files any more; after ``enter_namespaces``."""
    os.chroot(_EMPTY)
    os.chdir("/")


def drop_privileges() -> None:
    """Be nobody where this process may choose, without capabilities, and end when the parent does."""
    with contextlib.suppress(PermissionError):  # it is not root: then it has no privileges outside of its namespace
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _, _, capset = _machine()
    _call("syscall", capset, struct.pack("=II", 0x20080522, 0), bytes(24))
    _call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # after the change of user, which clears it


def filter_system_calls() -> None:
    """From here on this process can make the calls of _ALLOWED only; others fail with EPERM. Raises OSError."""
    column, arch, _ = _machine()
    numbers = [numbers[column] for numbers in _ALLOWED.values()]
    program = [
        (_LOAD, 0, 0, 4),  # the machine's architecture ...
        (_JUMP_IF_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),  # ... since another one numbers its calls differently
        (_LOAD, 0, 0, 0),  # the call's number
        *((_JUMP_IF_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    head = struct.pack("@HP", len(program), ctypes.addressof(code))  # struct sock_fprog
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0)


def _machine() -> tuple[int, int, int]:
    name = os.uname().machine
    if name not in _MACHINES:
        raise OSError(f"the filter of system calls knows {' and '.join(sorted(_MACHINES))}, not {name}")
    return _MACHINES[name]


def _call(name: str, *arguments: object) -> None:
    longs = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if getattr(_libc, name)(*longs) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - pathlib would double the start-up time
        file.write(text)
