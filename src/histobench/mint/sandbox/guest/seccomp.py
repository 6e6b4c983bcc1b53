"""A seccomp filter: it refuses a reviewed list of calls and every newer one; the rest is allowed."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence
from functools import cache, partial

from . import syscalls
from .syscalls import machine, prctl


def _numbers(table: str) -> dict[str, tuple[int | None, int | None]]:
    """Name -> number on x86-64 and on aarch64; - where the architecture does not have the call."""
    entries = (entry.split() for entry in table.split(";"))
    return {
        name: (None if x86 == "-" else int(x86), None if arm == "-" else int(arm))
        for name, x86, arm in entries
    }


ALWAYS_REFUSED = _numbers(
    """
    acct 163 89; add_key 248 217; adjtimex 159 171; bpf 321 280; chroot 161 51;
    clock_adjtime 305 266; clock_settime 227 112; delete_module 176 106;
    fanotify_init 300 262; fanotify_mark 301 263; finit_module 313 273; fsconfig 431 431;
    fsmount 432 432; fsopen 430 430; fspick 433 433; init_module 175 105;
    inotify_add_watch 254 27; io_uring_enter 426 426; io_uring_register 427 427;
    io_uring_setup 425 425; ioperm 173 -; iopl 172 -; kcmp 312 272; kexec_file_load 320 294;
    kexec_load 246 104; keyctl 250 219; lookup_dcookie 212 18; mbind 237 235;
    memfd_secret 447 447; migrate_pages 256 238; modify_ldt 154 -; mount 165 40;
    mount_setattr 442 442; move_mount 429 429; move_pages 279 239; name_to_handle_at 303 264;
    nfsservctl 180 42; open_by_handle_at 304 265; open_tree 428 428; perf_event_open 298 241;
    personality 135 92; pidfd_getfd 438 438; pivot_root 155 41; process_madvise 440 440;
    process_mrelease 448 448; process_vm_readv 310 270; process_vm_writev 311 271;
    ptrace 101 117; quotactl 179 60; quotactl_fd 443 443; reboot 169 142; request_key 249 218;
    set_mempolicy 238 237; set_mempolicy_home_node 450 450; setdomainname 171 162;
    sethostname 170 161; setns 308 268; setpriority 141 140; settimeofday 164 170;
    swapoff 168 225; swapon 167 224; sysfs 139 -; syslog 103 116; umount2 166 39;
    unshare 272 97; uselib 134 -; userfaultfd 323 282; vhangup 153 58
    """
)
# Memory that belongs to no process: no limit reaches it, and it does not show in any process's size.
UNCOUNTED_MEMORY = _numbers(
    """
    io_setup 206 0; landlock_add_rule 445 445; landlock_create_ruleset 444 444;
    landlock_restrict_self 446 446; memfd_create 319 279; mq_open 240 180; msgget 68 186;
    semget 64 190; shmget 29 194; vmsplice 278 75
    """
)
# Without namespaces of its own an episode shares these with the rest of the machine. A descriptor on its way
# through a socket (sendmsg) would hide a file from the count.
REFUSED_WITHOUT_NAMESPACES = _numbers(
    """
    connect 42 203; ioprio_set 251 30; sendmmsg 307 269; sendmsg 46 211; socket 41 198
    """
)
# Where model code runs under the user's own id, the user's own files and processes need more care.
REFUSED_UNDER_SHARED_UID = _numbers(
    """
    chmod 90 -; chown 92 -; fchmod 91 52; fchmodat 268 53; fchown 93 55; fchownat 260 54;
    fremovexattr 199 16; fsetxattr 190 7; futimesat 261 -; lchown 94 -; lremovexattr 198 15;
    lsetxattr 189 6; removexattr 197 14; setxattr 188 5; truncate 76 45; utime 132 -;
    utimensat 280 88; utimes 235 -
    """
)
_ALLOWED_IN_PART = _numbers(
    """
    clone 56 220; clone3 435 435; fcntl 72 25; flock 73 32; ioctl 16 29; kill 62 129;
    mmap 9 222; pidfd_send_signal 424 424; prctl 157 167; prlimit64 302 261;
    rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240; sched_setaffinity 203 122;
    sched_setattr 314 274; sched_setparam 142 118; sched_setscheduler 144 119;
    setsockopt 54 208; socketpair 53 199; tgkill 234 131; tkill 200 130
    """
)
NUMBERS = {
    **ALWAYS_REFUSED,
    **UNCOUNTED_MEMORY,
    **REFUSED_WITHOUT_NAMESPACES,
    **REFUSED_UNDER_SHARED_UID,
    **_ALLOWED_IN_PART,
}
# Calls with a higher number were added after the list was reviewed: they do not exist here.
LAST_REVIEWED = 450

_LOAD_WORD, _EQUAL, _GREATER, _AND_SET, _MASK, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_ALL_NAMESPACES = 0x7E020000
_CLONE_FILES, _CLONE_PARENT, _CLONE_THREAD = 0x400, 0x8000, 0x10000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x1, 0x20, 0x40000
_AF_UNIX = 1
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and their FORCE cousins
# Signal at the parent's death, readability by the watching zygote, and who adopts orphans.
_FIXED_ATTRIBUTES = (syscalls.PR_SET_PDEATHSIG, syscalls.PR_SET_DUMPABLE, syscalls.PR_SET_CHILD_SUBREAPER)
_SOCKET_TYPE_MASK, _STREAM, _SEQPACKET = 0xF, 1, 5
# Locks by fcntl, of the process and of the open file; asking for them; leases and notices of changes.
_SET_LOCK, _ASK_ABOUT_OTHERS = (6, 7, 37, 38), (5, 36, 1024, 1026)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_PRETEND, _REFUSE, _NO_ACCESS = _ERRNO | 0, _ERRNO | errno.EPERM, _ERRNO | errno.EACCES
_INVALID, _MISSING = _ERRNO | errno.EINVAL, _ERRNO | errno.ENOSYS

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
    program: list[Instruction] = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 1, 0, _AUDIT_ARCHITECTURE[arch]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
    ]
    if arch == "x86_64":  # the x32 calls are a second door to the same kernel functions
        program += [(_AND_SET, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    program += [(_GREATER, 0, 1, LAST_REVIEWED), (_RETURN, 0, 0, _MISSING)]
    refused = [*ALWAYS_REFUSED, *UNCOUNTED_MEMORY]
    refused += [] if namespaces else REFUSED_WITHOUT_NAMESPACES
    refused += REFUSED_UNDER_SHARED_UID if shared_uid else []
    rules = [(name, [(_RETURN, 0, 0, _REFUSE)]) for name in refused]
    rules += [(name, [*body, (_RETURN, 0, 0, _ALLOW)]) for name, body in _rules(namespaces, signal_only)]
    for name, body in rules:
        if (call := NUMBERS[name][list(_AUDIT_ARCHITECTURE).index(arch)]) is not None:
            program += [(_EQUAL, 0, len(body), call), *body]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _rules(namespaces: bool, signal_only: int | None) -> list[tuple[str, list[Instruction]]]:
    """What calls that are allowed in part may not be asked for; the first row that answers decides."""
    anonymous = _MAP_SHARED | _MAP_ANONYMOUS
    rules = [
        # The C library falls back to clone, whose flags a filter can read.
        ("clone3", [(_RETURN, 0, 0, _MISSING)]),
        # A sibling or a thread with descriptors of its own would not be counted.
        (
            "clone",
            _unless(0, [0], _REFUSE, mask=_ALL_NAMESPACES | _CLONE_PARENT)
            + _if(0, [_CLONE_THREAD], _REFUSE, mask=_CLONE_THREAD | _CLONE_FILES),
        ),
        # Pages that stay when they are unmapped, and those of a pool that is the machine's. Processes that
        # want to share memory map a file of /dev/shm, which has a limit.
        ("mmap", _unless(3, [0], _REFUSE, mask=_MAP_HUGETLB) + _if(3, [anonymous], _REFUSE, mask=anonymous)),
        ("prctl", _if(0, _FIXED_ATTRIBUTES, _REFUSE)),
        # A wish, not an order: it is granted in name, and the buffer keeps its default size.
        ("setsockopt", _unless(1, [_SOL_SOCKET], _ALLOW) + _if(2, _BUFFER_SIZES, _PRETEND)),
        # Files of the system are the same for all episodes, and so would be a lock: it is granted in name.
        ("flock", [(_RETURN, 0, 0, _PRETEND)]),
        ("fcntl", _if(1, _SET_LOCK, _PRETEND) + _if(1, _ASK_ABOUT_OTHERS, _INVALID)),
        ("ioctl", _if(1, [_TIOCSTI, _TIOCLINUX], _REFUSE)),
        ("socketpair", _unless(0, [_AF_UNIX], _NO_ACCESS)),
    ]
    if namespaces:
        rules.append(("socket", _unless(0, [_AF_UNIX], _NO_ACCESS)))
    else:
        # A datagram pair could still send to any named socket of the machine, such as a container engine's:
        # only the connected kinds are left.
        rules[-1][1].extend(_unless(1, [_STREAM, _SEQPACKET], _NO_ACCESS, mask=_SOCKET_TYPE_MASK))
        own = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
        rules += [(name, _unless(0, [0], _REFUSE)) for name in own]
    if signal_only is not None:
        signals = ("kill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tgkill", "tkill")
        rules += [(name, _unless(0, [signal_only], _REFUSE)) for name in signals]
        rules.append(("pidfd_send_signal", [(_RETURN, 0, 0, _REFUSE)]))
    return rules


def install_filter(packed: bytes) -> None:
    """Put this process and all it will start under a packed program, for good."""
    code = ctypes.create_string_buffer(packed, len(packed))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    header = Program(len(packed) // struct.calcsize("=HBBI"), ctypes.addressof(code))
    prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header))


def _if(
    argument: int, values: Sequence[int], answer: int, *, mask: int = 0xFFFFFFFF, unless: bool = False
) -> list[Instruction]:
    """Answer when the masked argument is one of `values`. The low half is read: no argument here has more."""
    rows = [(_LOAD_WORD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument), (_MASK, 0, 0, mask)]
    for following, value in zip(reversed(range(len(values))), values, strict=True):
        rows.append((_EQUAL, following + unless, 0 if following or unless else 1, value))
    return [*rows, (_RETURN, 0, 0, answer)]


_unless = partial(_if, unless=True)
