"""A seccomp filter assembled by hand: what model code may not ask the kernel for.

The filter refuses a reviewed list of calls and every call newer than the list; the rest is allowed, so
threads, subprocesses, NumPy and the like work unchanged.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence
from functools import cache

from .syscalls import (
    NEW_CGROUP,
    NEW_IPC,
    NEW_MOUNT,
    NEW_NET,
    NEW_PID,
    NEW_USER,
    NEW_UTS,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    machine,
    prctl,
)

# Name, number on x86-64, number on aarch64; - where the architecture does not have the call.
_TABLE = """
    acct 163 89; add_key 248 217; adjtimex 159 171; bpf 321 280; chmod 90 -; chown 92 -; chroot 161 51;
    clock_adjtime 305 266; clock_settime 227 112; clone 56 220; clone3 435 435; connect 42 203;
    delete_module 176 106; fanotify_init 300 262; fanotify_mark 301 263; fchmod 91 52; fchmodat 268 53;
    fchown 93 55; fchownat 260 54; fcntl 72 25; finit_module 313 273; flock 73 32; fremovexattr 199 16;
    fsconfig 431 431; fsetxattr 190 7; fsmount 432 432; fsopen 430 430; fspick 433 433; futimesat 261 -;
    init_module 175 105; inotify_add_watch 254 27; io_setup 206 0; io_uring_enter 426 426;
    io_uring_register 427 427; io_uring_setup 425 425; ioctl 16 29; ioperm 173 -; iopl 172 -;
    ioprio_set 251 30; kcmp 312 272; kexec_file_load 320 294; kexec_load 246 104; keyctl 250 219;
    kill 62 129; landlock_add_rule 445 445; landlock_create_ruleset 444 444;
    landlock_restrict_self 446 446; lchown 94 -; lookup_dcookie 212 18; lremovexattr 198 15;
    lsetxattr 189 6; mbind 237 235; memfd_create 319 279; memfd_secret 447 447; migrate_pages 256 238;
    modify_ldt 154 -; mmap 9 222; mount 165 40; mount_setattr 442 442; move_mount 429 429;
    move_pages 279 239; mq_open 240 180; msgget 68 186; name_to_handle_at 303 264; nfsservctl 180 42;
    open_by_handle_at 304 265; open_tree 428 428; perf_event_open 298 241; personality 135 92;
    pidfd_getfd 438 438; pidfd_send_signal 424 424; pivot_root 155 41; prctl 157 167; prlimit64 302 261;
    process_madvise 440 440; process_mrelease 448 448; process_vm_readv 310 270;
    process_vm_writev 311 271; ptrace 101 117; quotactl 179 60; quotactl_fd 443 443; reboot 169 142;
    removexattr 197 14; request_key 249 218; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240;
    sched_setaffinity 203 122; sched_setattr 314 274; sched_setparam 142 118;
    sched_setscheduler 144 119; semget 64 190; sendmmsg 307 269; sendmsg 46 211; set_mempolicy 238 237;
    set_mempolicy_home_node 450 450; setdomainname 171 162; sethostname 170 161; setns 308 268;
    setpriority 141 140; setsockopt 54 208; settimeofday 164 170; setxattr 188 5; shmget 29 194;
    socket 41 198; socketpair 53 199; swapoff 168 225; swapon 167 224; sysfs 139 -; syslog 103 116;
    tgkill 234 131; tkill 200 130; truncate 76 45; umount2 166 39; unshare 272 97; uselib 134 -;
    userfaultfd 323 282; utime 132 -; utimensat 280 88; utimes 235 -; vhangup 153 58; vmsplice 278 75
"""
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    name: (None if x86 == "-" else int(x86), None if arm == "-" else int(arm))
    for name, x86, arm in (entry.split() for entry in _TABLE.split(";"))
}
# Calls with a higher number were added after the list was reviewed: they do not exist here.
LAST_REVIEWED = 450


def _names(text: str) -> list[str]:
    return text.split()


ALWAYS_REFUSED = _names(
    """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init fanotify_mark
    finit_module fsconfig fsmount fsopen fspick init_module inotify_add_watch io_uring_enter
    io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind
    memfd_secret migrate_pages modify_ldt mount mount_setattr move_mount move_pages name_to_handle_at
    nfsservctl open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root
    process_madvise process_mrelease process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot
    request_key set_mempolicy set_mempolicy_home_node setdomainname sethostname setns setpriority
    settimeofday swapoff swapon sysfs syslog umount2 unshare uselib userfaultfd vhangup
    """
)
# Memory that belongs to no process: no limit reaches it, and it does not show in any process's size.
UNCOUNTED_MEMORY = _names(
    """
    io_setup landlock_add_rule landlock_create_ruleset landlock_restrict_self memfd_create mq_open msgget
    semget shmget vmsplice
    """
)
# Without namespaces of its own an episode shares these with the rest of the machine. A descriptor on its way
# through a socket (sendmsg) would hide a file from the count.
REFUSED_WITHOUT_NAMESPACES = _names(
    """
    connect ioprio_set sendmmsg sendmsg socket
    """
)
# Where model code runs under the user's own id, the user's own files and processes need more care.
REFUSED_UNDER_SHARED_UID = _names(
    """
    chmod chown fchmod fchmodat fchown fchownat fremovexattr fsetxattr futimesat lchown lremovexattr
    lsetxattr removexattr setxattr truncate utime utimensat utimes
    """
)
OWN_PROCESS_ONLY = _names("prlimit64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler")
SIGNALS = _names("kill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo tgkill tkill")

_LOAD_WORD, _EQUAL, _GREATER, _AND_SET, _MASK, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_ALL_NAMESPACES = NEW_MOUNT | NEW_UTS | NEW_IPC | NEW_USER | NEW_PID | NEW_NET | NEW_CGROUP
_CLONE_FILES, _CLONE_PARENT, _CLONE_THREAD = 0x400, 0x8000, 0x10000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x1, 0x20, 0x40000
_AF_UNIX = 1
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and their FORCE cousins
# Signal at the parent's death, readability by the watching zygote, and who adopts orphans.
_FIXED_ATTRIBUTES = (PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER)
_SOCKET_TYPE_MASK, _STREAM, _SEQPACKET = 0xF, 1, 5
# Locks by fcntl, of the process and of the open file; asking for them; leases and notices of changes.
_SET_LOCK, _ASK_ABOUT_OTHERS = (6, 7, 37, 38), (5, 36, 1024, 1026)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

_INSTRUCTION_BYTES = 8

Instruction = tuple[int, int, int, int]


@cache
def packed_filter(*, namespaces: bool, shared_uid: bool = False, signal_only: int | None = None) -> bytes:
    """The program of `build_filter` for this machine as the kernel reads it; built once per setting."""
    program = build_filter(namespaces=namespaces, shared_uid=shared_uid, signal_only=signal_only)
    return b"".join(struct.pack("=HBBI", *row) for row in program)


def build_filter(
    *, namespaces: bool, shared_uid: bool = False, signal_only: int | None = None, arch: str | None = None
) -> list[Instruction]:
    """The filter program as (code, jump true, jump false, operand) rows.

    `namespaces`: the episode has namespaces of its own. `shared_uid`: model code runs under the user's own
    id. `signal_only`: the one process that may be signalled, where the kernel cannot scope signals itself.
    """
    arch = arch or machine()
    column = ("x86_64", "aarch64").index(arch)

    def number(name: str) -> int | None:
        return NUMBERS[name][column]

    program: list[Instruction] = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 1, 0, _AUDIT_ARCHITECTURE[arch]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
    ]
    if arch == "x86_64":  # the x32 calls are a second door to the same kernel functions
        program += [(_AND_SET, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    program += [(_GREATER, 0, 1, LAST_REVIEWED), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]

    refused = [*ALWAYS_REFUSED, *UNCOUNTED_MEMORY]
    refused += [] if namespaces else REFUSED_WITHOUT_NAMESPACES
    refused += REFUSED_UNDER_SHARED_UID if shared_uid else []
    for name in refused:
        if (call := number(name)) is not None:
            program += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]

    def rule(name: str, *body: Instruction) -> None:
        if (call := number(name)) is not None:
            program.extend([(_EQUAL, 0, len(body), call), *body])

    # The C library falls back to clone, whose flags a filter can read.
    rule("clone3", (_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    # A sibling or a thread with descriptors of its own would not be counted.
    rule(
        "clone",
        _argument(0),
        (_AND_SET, 3, 0, _ALL_NAMESPACES | _CLONE_PARENT),
        (_MASK, 0, 0, _CLONE_THREAD | _CLONE_FILES),
        (_EQUAL, 1, 0, _CLONE_THREAD),
        _allow(),
        _refuse(errno.EPERM),
    )
    # Pages that stay when they are unmapped, and those of a pool that is the machine's. Who wants to share
    # memory between processes maps a file of /dev/shm, which has a limit.
    rule(
        "mmap",
        _argument(3),
        (_AND_SET, 3, 0, _MAP_HUGETLB),
        (_MASK, 0, 0, _MAP_SHARED | _MAP_ANONYMOUS),
        (_EQUAL, 1, 0, _MAP_SHARED | _MAP_ANONYMOUS),
        _allow(),
        _refuse(errno.EPERM),
    )
    rule("prctl", _argument(0), *_one_of(_FIXED_ATTRIBUTES, errno.EPERM), _allow())
    # A wish, not an order: it is granted in name, and the buffer keeps its default size.
    rule(
        "setsockopt",
        _argument(1),
        (_EQUAL, 0, 1 + 2 * len(_BUFFER_SIZES), _SOL_SOCKET),
        _argument(2),
        *_one_of(_BUFFER_SIZES, 0),
        _allow(),
    )
    # Files of the system are the same for all episodes, and so would be a lock on one: it is granted in name.
    rule("flock", _refuse(0))
    rule(
        "fcntl",
        _argument(1),
        *_one_of(_SET_LOCK, 0),
        *_one_of(_ASK_ABOUT_OTHERS, errno.EINVAL),
        _allow(),
    )
    if namespaces:
        rule("socket", _argument(0), (_EQUAL, 1, 0, _AF_UNIX), _refuse(errno.EACCES), _allow())
        rule("socketpair", _argument(0), (_EQUAL, 1, 0, _AF_UNIX), _refuse(errno.EACCES), _allow())
    else:
        # A datagram pair could still send to any named socket of the machine, such as a container engine's:
        # only the connected kinds are left.
        rule(
            "socketpair",
            _argument(0),
            (_EQUAL, 0, 4, _AF_UNIX),
            _argument(1),
            (_MASK, 0, 0, _SOCKET_TYPE_MASK),
            (_EQUAL, 2, 0, _STREAM),
            (_EQUAL, 1, 0, _SEQPACKET),
            _refuse(errno.EACCES),
            _allow(),
        )
        for name in OWN_PROCESS_ONLY:
            rule(name, _argument(0), (_EQUAL, 1, 0, 0), _refuse(errno.EPERM), _allow())
    rule(
        "ioctl",
        _argument(1),
        (_EQUAL, 1, 0, _TIOCSTI),
        (_EQUAL, 0, 1, _TIOCLINUX),
        _refuse(errno.EPERM),
        _allow(),
    )
    if signal_only is not None:
        for name in SIGNALS:
            allowed = -1 if name == "pidfd_send_signal" else signal_only
            rule(name, _argument(0), (_EQUAL, 1, 0, allowed & 0xFFFFFFFF), _refuse(errno.EPERM), _allow())
    program.append(_allow())
    return program


def install_filter(packed: bytes) -> None:
    """Put this process and all it will start under a packed program, for good."""
    code = ctypes.create_string_buffer(packed, len(packed))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    header = Program(len(packed) // _INSTRUCTION_BYTES, ctypes.addressof(code))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header))


def _argument(index: int) -> Instruction:
    # The low half; both architectures are little-endian, and every argument looked at is 32 bits wide.
    return (_LOAD_WORD, 0, 0, _ARGUMENTS_OFFSET + 8 * index)


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _one_of(values: Sequence[int], number: int) -> list[Instruction]:
    """Answer error `number` when the loaded word is one of `values`, else go on."""
    return [row for value in values for row in ((_EQUAL, 0, 1, value), _refuse(number))]


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)
