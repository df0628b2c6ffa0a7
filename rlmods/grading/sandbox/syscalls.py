"""System call numbers of x86-64 and AArch64."""

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
tgkill 234 131
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
_RESTRICTED = """
kill 62 129
fork 57 -
vfork 58 -
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


def blocked(machine: str) -> dict[str, int]:
    """Return the numbers of the calls that a confined process may not make, by name."""
    return _numbers(_BLOCKED, machine)


def restricted(machine: str) -> dict[str, int]:
    """Return the numbers of the calls that it may make only with certain arguments, by name."""
    return _numbers(_RESTRICTED, machine)


def _numbers(table: str, machine: str) -> dict[str, int]:
    column = 1 + list(MACHINES).index(machine)
    rows = [line.split() for line in table.split("\n") if line]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
