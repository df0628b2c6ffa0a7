"""Irrevocable restrictions of the current process. Linux, x86-64 and AArch64, no privileges needed.

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
from functools import cache

from . import syscalls

_LIBC = ctypes.CDLL(None, use_errno=True)
(
    _PR_SET_PDEATHSIG,
    _PR_SET_DUMPABLE,
    _PR_SET_NO_NEW_PRIVS,
    _PR_SET_SECCOMP,
    _PR_SET_CHILD_SUBREAPER,
) = 1, 4, 38, 22, 36
_SECCOMP_MODE_FILTER, _SIGKILL = 2, 9
_MADV_COLLAPSE, _HUGE_PAGE = 25, 2**21
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute (map), read a file, list a folder
_FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file access rights, by the first Landlock ABI that defines them."""

_TRUNCATE_ABI = 3
"""First Landlock ABI that controls truncation."""
_OPEN_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD = 0x10000
_REFUSED_FCNTL = (6, 7, 37, 38, 8, 10, 15, 1024, 1026, 1031)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE,
F_NOTIFY, F_SETPIPE_SZ"""
# FIONREAD, TCGETS, FIOCLEX, FIONCLEX, FIONBIO (`os.set_blocking`)
_ALLOWED_IOCTL = (0x541B, 0x5401, 0x5451, 0x5450, 0x5421)


class UnsupportedError(Exception):
    """This machine cannot confine a process; the message names what is missing."""


def missing_support() -> str | None:
    """Return what this machine lacks to confine a process, or None."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has neither Landlock nor seccomp"
    if os.uname().machine not in syscalls.MACHINES:
        return f"system call numbers of {os.uname().machine} are not known"
    if _landlock_abi() < 1:
        return "this kernel has no Landlock (it needs Linux 5.13 or later, with Landlock enabled)"
    # EFAULT: no filter given
    if (
        _LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0) < 0
        and ctypes.get_errno() != errno.EFAULT
    ):
        return "this kernel or container has no seccomp filters"
    return None


def confine_server(readable: list[str], abi: int | None = None) -> None:
    """Confine this process and all that it will fork; it may still fork and end processes. Raises
    UnsupportedError if a wall is refused.

    Args:
        readable: files and folders that stay readable; missing ones are skipped.
        abi: use at most this Landlock ABI, as an older kernel would.
    """
    if (reason := missing_support()) is not None:
        raise UnsupportedError(reason)
    _prctl(_PR_SET_DUMPABLE, 0)  # inherited by forks
    abi = min(_landlock_abi(), abi or _landlock_abi())
    ruleset = _landlock_rules(readable, abi)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _checked(_LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)
    _checked(_LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)), "capabilities")
    _seccomp(_Program(_filter(os.uname().machine, abi)))
    _program_of_forks()


def confine() -> None:
    """Confine this process, forked by a confined server, for good: no new processes and no signals.
    Raises UnsupportedError if refused."""
    _seccomp(_program_of_forks())


class _Program:
    """A seccomp BPF program as the system call takes it."""

    def __init__(self, steps: list[tuple[int, int, int, int]]) -> None:
        code = b"".join(struct.pack("=HBBI", *step) for step in steps)
        self.code = ctypes.create_string_buffer(code, len(code))
        self.header = struct.pack("@HP", len(steps), ctypes.addressof(self.code))


@cache
def _program_of_forks() -> _Program:
    """Return the program that a forked process adds, made once by the server."""
    return _Program(_filter_of_forks(os.uname().machine))


def _seccomp(program: _Program) -> None:
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program.header)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends (Linux)."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def use_huge_pages() -> None:
    """Move the memory of this process into huge pages, where the kernel can (Linux 6.1): a fork
    then copies few page tables, and takes half of the time in a server that has imported
    packages."""
    if not sys.platform.startswith("linux"):
        return
    with open("/proc/self/maps") as stream:
        regions = [line.split() for line in stream]
    for region in regions:
        if region[1] == "rw-p" and region[5:] in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in region[0].split("-"))
            start, end = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
            if start < end:
                # refused without harm
                _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)


def end_with_parent(parent: int) -> None:
    """Let this process be killed when its parent ends (Linux)."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def limit(*, cpu_s: int, memory_mb: int, file_bytes: int, parent: int) -> None:
    """Set resource limits only, which every Unix has."""
    end_with_parent(parent)
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
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _landlock_abi() -> int:
    return int(_LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1))


def _landlock_rules(readable: list[str], abi: int) -> int:
    """Return the file descriptor of a Landlock ruleset that allows to read `readable`."""
    rights = max(bits for since, bits in _FS_RIGHTS.items() if abi >= since)
    # files; TCP; abstract sockets and signals
    rules = struct.pack("=QQQ", rights, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    rules = rules[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _checked(_LIBC.syscall(_LANDLOCK_CREATE, rules, len(rules), 0), "Landlock")
    for name in readable:
        if not os.path.exists(name):
            continue
        folder = os.open(name, os.O_PATH | os.O_CLOEXEC)
        allowed = _READ if os.path.isdir(name) else 1 << 2
        if name == os.devnull:
            allowed |= 1 << 1
        _checked(
            _LIBC.syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", allowed, folder), 0),
            "Landlock",
        )
        os.close(folder)
    return ruleset


_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = (_RETURN, 0, 0, 0x7FFF0000), (_RETURN, 0, 0, 0x80000000)
_REFUSE, _UNKNOWN = (_RETURN, 0, 0, 0x50000 | errno.EPERM), (_RETURN, 0, 0, 0x50000 | errno.ENOSYS)
# arguments of the call
_FIRST, _SECOND, _THIRD = ((_LOAD, 0, 0, offset) for offset in (16, 24, 32))
_NUMBER = (_LOAD, 0, 0, 0)


def _start(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the instructions that refuse other machines' calls and load the number of the call."""
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, syscalls.MACHINES[machine]), _KILL]
    return [*steps, _NUMBER, (_AT_LEAST, 0, 1, 0x40000000), _REFUSE]  # the x32 ABI of x86-64


def _filter(machine: str, abi: int) -> list[tuple[int, int, int, int]]:
    """Return the seccomp BPF program as instructions (code, jump if true, jump if false,
    operand)."""
    restricted = syscalls.restricted(machine)
    steps = _start(machine)
    for number in syscalls.blocked(machine).values():
        steps += [(_EQUAL, 0, 1, number), _REFUSE]
    steps += [(_AT_LEAST, 0, 1, syscalls.FIRST_UNKNOWN), _UNKNOWN]
    steps += [
        (_EQUAL, 0, 1, restricted["clone3"]),
        _UNKNOWN,
    ]  # its flags are in memory, which a filter cannot read; libc falls back to clone
    steps += [(_EQUAL, 0, 4, restricted["prlimit64"]), _FIRST, (_EQUAL, 0, 1, 0), _ALLOW, _REFUSE]
    if abi < _TRUNCATE_ABI:
        steps += [(_EQUAL, 0, 1, restricted["openat2"]), _UNKNOWN]  # its flags are in memory too
        for name, flags in (("open", _SECOND), ("openat", _THIRD)):
            if name in restricted:
                steps += [
                    (_EQUAL, 0, 4, restricted[name]),
                    flags,
                    (_ANY_BIT, 0, 1, _OPEN_TO_WRITE),
                    _REFUSE,
                    _ALLOW,
                ]
    requests = [step for request in _ALLOWED_IOCTL for step in ((_EQUAL, 0, 1, request), _ALLOW)]
    steps += [(_EQUAL, 0, 2 + len(requests), restricted["ioctl"]), _SECOND, *requests, _REFUSE]
    commands = [step for command in _REFUSED_FCNTL for step in ((_EQUAL, 0, 1, command), _REFUSE)]
    return [*steps, (_EQUAL, 0, 1 + len(commands), restricted["fcntl"]), _SECOND, *commands, _ALLOW]


def _filter_of_forks(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the program that a forked process adds."""
    restricted = syscalls.restricted(machine)
    steps = _start(machine)
    for name in ("kill", "fork", "vfork"):
        steps += [(_EQUAL, 0, 1, restricted[name]), _REFUSE] if name in restricted else []
    options = [
        step
        for option in (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE)
        for step in ((_EQUAL, 0, 1, option), _REFUSE)
    ]
    steps += [(_EQUAL, 0, 2 + len(options), restricted["prctl"]), _FIRST, *options, _NUMBER]
    return [
        *steps,
        (_EQUAL, 0, 3, restricted["clone"]),
        _FIRST,
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        _REFUSE,
        _ALLOW,
    ]


def _prctl(option: int, *values: object) -> None:
    _checked(_LIBC.prctl(option, *values, *(0 for _ in range(4 - len(values)))), f"prctl {option}")


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise UnsupportedError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
