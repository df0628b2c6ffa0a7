"""Irrevocable restrictions of the current process: Landlock, seccomp (`seccomp`) and limits. Linux,
x86-64 and AArch64, no privileges needed.

- Landlock: files outside the given folders cannot be opened, and none can be written, created or
  removed. Before its version 3 (Linux 6.2), which cannot refuse truncation, seccomp refuses to open
  any file for writing, the null device too.
- seccomp: no sockets, no new processes (threads are allowed), no signals to others, no tracing, no
  memory that outlives the process, no change of a file's owner, mode or times, no change of
  scheduling, no message queues and semaphores of other processes, no locks and leases, no settings
  of devices and file systems.
- not dumpable: the memory and the file descriptors of a process are not reachable through /proc,
  also not by its siblings.
- capabilities: all are dropped, also for root.
- limits: seconds of processor time, address space, file size, open files, queued signals and
  timers, core dumps.

Imported by a bare interpreter: uses little of the standard library and nothing else.
"""

import ctypes
import errno
import os
import resource
import struct
import sys

from . import seccomp

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 0 | _READ_FILE | 1 << 3  # execute (map), read a file, list a folder
_FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file access rights, by the first Landlock ABI that defines them."""
_TRUNCATE_ABI = 3
"""First Landlock ABI that controls truncation."""


class UnsupportedError(Exception):
    """This machine cannot confine a process; the message names what is missing."""


def missing_support() -> str | None:
    """Return what this machine lacks to confine a process, or None."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has neither Landlock nor seccomp"
    if os.uname().machine not in seccomp.MACHINES:
        return f"system call numbers of {os.uname().machine} are not known"
    if _landlock_abi() < 1:
        return "this kernel has no Landlock (it needs Linux 5.13 or later, with Landlock enabled)"
    refused = _LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0) < 0
    if refused and ctypes.get_errno() != errno.EFAULT:  # EFAULT: no filter given
        return "this kernel or container has no seccomp filters"
    return None


def confine_server(readable: list[str]) -> None:
    """Confine this process and all that it will fork; it may still fork and end processes. Raises
    UnsupportedError if a restriction is refused.

    Args:
        readable: files and folders that stay readable; missing ones are skipped.
    """
    reason = missing_support()
    if reason is not None:
        raise UnsupportedError(reason)
    _prctl(_PR_SET_DUMPABLE, 0)  # inherited by forks
    ruleset = _landlock_rules(readable)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _checked(_LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)
    _checked(_LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)), "capabilities")
    refuse_writes = _landlock_abi() < _TRUNCATE_ABI
    _add_filter(seccomp.server_filter(os.uname().machine, refuse_writes))


def confine() -> None:
    """Confine this process, forked by a confined server, for good: no new processes, and no
    signals to others. Raises UnsupportedError if refused."""
    _add_filter(seccomp.fork_filter(os.uname().machine, os.getpid()))


def _add_filter(steps: list[seccomp.Step]) -> None:
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(steps), ctypes.addressof(buffer))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def end_with_parent(parent: int) -> None:
    """Let this process be killed when its parent ends (Linux)."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def limit(*, cpu_s: int, memory_mb: int, file_bytes: int) -> None:
    """Set resource limits only, which every Unix has."""
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_mb * 2**20,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if sys.platform.startswith("linux"):
        limits[resource.RLIMIT_SIGPENDING] = 64
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def _landlock_abi() -> int:
    return int(_LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1))


def _landlock_rules(readable: list[str]) -> int:
    """Return the file descriptor of a Landlock ruleset that allows to read `readable`."""
    abi = _landlock_abi()
    rights = max(bits for since, bits in _FS_RIGHTS.items() if abi >= since)
    network = 3 if abi >= 4 else 0  # bind and connect of TCP
    scopes = 3 if abi >= 6 else 0  # abstract sockets and signals
    rules = struct.pack("=QQQ", rights, network, scopes)
    size = 8 * (1 + (abi >= 4) + (abi >= 6))
    ruleset = _checked(_LIBC.syscall(_LANDLOCK_CREATE, rules[:size], size, 0), "Landlock")
    for name in readable:
        if not os.path.exists(name):
            continue
        folder = os.open(name, os.O_PATH | os.O_CLOEXEC)
        allowed = _READ_FOLDER if os.path.isdir(name) else _READ_FILE
        if name == os.devnull:
            allowed |= _WRITE_FILE
        rule = struct.pack("=Qi", allowed, folder)
        _checked(_LIBC.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), "Landlock")
        os.close(folder)
    return ruleset


def _prctl(option: int, *values: object) -> None:
    padding = [0] * (4 - len(values))
    _checked(_LIBC.prctl(option, *values, *padding), f"prctl {option}")


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise UnsupportedError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
