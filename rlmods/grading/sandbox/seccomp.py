"""seccomp filters for x86-64 and AArch64: which system calls a confined process may make.

A filter is a BPF program, a list of instructions (code, jump if true, jump if false, operand). A
jump is a number of instructions to skip.
"""

import errno
import os

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine names and their AUDIT_ARCH constants."""

_BLOCKED = """
execve 59 221
execveat 322 281
socket 41 198
socketpair 53 199
connect 42 203
bind 49 200
listen 50 201
accept 43 202
accept4 288 242
sendto 44 206
sendmsg 46 211
sendmmsg 307 269
io_uring_setup 425 425
io_uring_enter 426 426
io_uring_register 427 427
ptrace 101 117
process_vm_readv 310 270
process_vm_writev 311 271
tkill 200 130
rt_sigqueueinfo 129 138
rt_tgsigqueueinfo 297 240
pidfd_open 434 434
pidfd_send_signal 424 424
pidfd_getfd 438 438
unshare 272 97
setns 308 268
mount 165 40
umount2 166 39
pivot_root 155 41
chroot 161 51
keyctl 250 219
add_key 248 217
request_key 249 218
bpf 321 280
perf_event_open 298 241
userfaultfd 323 282
memfd_create 319 279
memfd_secret 447 447
shmget 29 194
shmat 30 196
msgget 68 186
semget 64 190
mq_open 240 180
chmod 90 -
fchmod 91 52
fchmodat 268 53
fchmodat2 452 452
chown 92 -
lchown 94 -
fchown 93 55
fchownat 260 54
utime 132 -
utimes 235 -
utimensat 280 88
futimesat 261 -
setxattr 188 5
lsetxattr 189 6
fsetxattr 190 7
removexattr 197 14
lremovexattr 198 15
fremovexattr 199 16
truncate 76 45
setpriority 141 140
sched_setscheduler 144 119
sched_setattr 314 274
ioprio_set 251 30
setxattrat 463 463
removexattrat 466 466
file_setattr 469 469
creat 85 -
ftruncate 77 46
open_by_handle_at 304 265
sched_setaffinity 203 122
sched_setparam 142 118
set_mempolicy 238 237
mbind 237 235
migrate_pages 256 238
move_pages 279 239
set_mempolicy_home_node 450 450
process_madvise 440 440
process_mrelease 448 448
kcmp 312 272
shmctl 31 195
msgsnd 69 189
msgrcv 70 188
msgctl 71 187
semop 65 193
semctl 66 191
semtimedop 220 192
mq_unlink 241 181
inotify_init 253 -
inotify_init1 294 26
fanotify_init 300 262
personality 135 92
flock 73 32
fallocate 285 47
getxattr 191 8
lgetxattr 192 9
fgetxattr 193 10
listxattr 194 11
llistxattr 195 12
flistxattr 196 13
getxattrat 464 464
listxattrat 465 465
name_to_handle_at 303 264
statmount 457 457
listmount 458 458
sync 162 81
syncfs 306 267
io_setup 206 0
fsync 74 82
fdatasync 75 83
sync_file_range 277 84
cachestat 451 451
file_getattr 468 468
open_tree_attr 467 467
modify_ldt 154 -
"""
_FORK = """
fork 57 -
vfork 58 -
"""
_RESTRICTED = """
kill 62 129
tgkill 234 131
clone 56 220
clone3 435 435
prlimit64 302 261
fcntl 72 25
ioctl 16 29
prctl 157 167
open 2 -
openat 257 56
openat2 437 437
"""
FIRST_UNKNOWN = 470
"""Calls from this number on have not been reviewed; in a confined process they do not exist."""
OPEN_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CLONE_THREAD = 0x10000
REFUSED_PRCTL = (1, 4)
"""PR_SET_PDEATHSIG, PR_SET_DUMPABLE"""
REFUSED_FCNTL = (6, 7, 37, 38, 8, 10, 15, 1024, 1026, 1031)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE,
F_NOTIFY, F_SETPIPE_SZ"""
ALLOWED_IOCTL = (0x541B, 0x5401, 0x5451, 0x5450, 0x5421)
"""FIONREAD, TCGETS, FIOCLEX, FIONCLEX, FIONBIO (`os.set_blocking`)"""

Step = tuple[int, int, int, int]
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW: Step = (RETURN, 0, 0, 0x7FFF0000)
KILL: Step = (RETURN, 0, 0, 0x80000000)
REFUSE: Step = (RETURN, 0, 0, 0x50000 | errno.EPERM)
UNKNOWN: Step = (RETURN, 0, 0, 0x50000 | errno.ENOSYS)
NUMBER: Step = (LOAD, 0, 0, 0)
FIRST: Step = (LOAD, 0, 0, 16)
SECOND: Step = (LOAD, 0, 0, 24)
THIRD: Step = (LOAD, 0, 0, 32)
"""Arguments of the call."""


def calls(table: str, machine: str) -> dict[str, int]:
    column = 1 + list(MACHINES).index(machine)
    rows = [line.split() for line in table.split("\n") if line]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def when(value: int, *steps: Step) -> list[Step]:
    """Return the instructions that run `steps` if the loaded number is `value`."""
    return [(EQUAL, 0, len(steps), value), *steps]


def each(values: tuple[int, ...], step: Step) -> list[Step]:
    """Return the instructions that run `step` if the loaded number is one of `values`."""
    found: list[Step] = []
    for value in values:
        found += when(value, step)
    return found


def start(machine: str) -> list[Step]:
    """Return the instructions that refuse other machines' calls and load the number of the call."""
    is_x32 = (AT_LEAST, 0, 1, 0x40000000)  # the x32 ABI of x86-64
    wrong_machine = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, MACHINES[machine]), KILL]
    return [*wrong_machine, NUMBER, is_x32, REFUSE]


def server_filter(machine: str, refuse_writes: bool) -> list[Step]:
    """Return the filter of the fork server and all that it forks.

    Args:
        refuse_writes: refuse to open any file for writing, also where Landlock would allow it.
    """
    numbers = calls(_RESTRICTED, machine)
    steps = start(machine)
    steps += each(tuple(calls(_BLOCKED, machine).values()), REFUSE)
    steps += [(AT_LEAST, 0, 1, FIRST_UNKNOWN), UNKNOWN]
    # its flags are in memory, which a filter cannot read; libc falls back to clone
    steps += when(numbers["clone3"], UNKNOWN)
    steps += when(numbers["prlimit64"], FIRST, *when(0, ALLOW), REFUSE)
    if refuse_writes:
        steps += when(numbers["openat2"], UNKNOWN)  # its flags are in memory too
        writes = (ANY_BIT, 0, 1, OPEN_TO_WRITE)
        for name, flags in (("open", SECOND), ("openat", THIRD)):
            if name in numbers:
                steps += when(numbers[name], flags, writes, REFUSE, ALLOW)
    steps += when(numbers["ioctl"], SECOND, *each(ALLOWED_IOCTL, ALLOW), REFUSE)
    steps += when(numbers["fcntl"], SECOND, *each(REFUSED_FCNTL, REFUSE), ALLOW)
    return [*steps, ALLOW]


def fork_filter(machine: str, pid: int) -> list[Step]:
    """Return the filter that the forked process `pid` adds: threads, but no processes, and no
    signals to others."""
    numbers = calls(_RESTRICTED, machine)
    steps = start(machine)
    steps += each(tuple(calls(_FORK, machine).values()), REFUSE)
    for name in ("kill", "tgkill"):
        steps += when(numbers[name], FIRST, *when(pid, ALLOW), REFUSE)
    steps += when(numbers["prctl"], FIRST, *each(REFUSED_PRCTL, REFUSE), ALLOW)
    steps += when(numbers["clone"], FIRST, (ANY_BIT, 1, 0, CLONE_THREAD), REFUSE, ALLOW)
    return [*steps, ALLOW]
