"""The filter program, run by a small interpreter of its own on both architectures."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

import pytest

from histobench.mint.sandbox.guest import seccomp

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def run(program: list[seccomp.Instruction], arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would answer: an independent reading of the classic BPF instructions used."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, arch, 0, *padded)
    position = accumulator = 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x06:
            return operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x25: accumulator > operand,
                0x45: bool(accumulator & operand),
            }[code]
            position += if_true if holds else if_false


def answer(arch: str, name: str, *arguments: int, **options: object) -> int:
    number = seccomp.NUMBERS[name][list(ARCHITECTURES).index(arch)]
    assert number is not None
    settings = {"namespaces": True, **options}
    program = seccomp.build_filter(arch=arch, **settings)  # type: ignore[arg-type]
    return run(program, ARCHITECTURES[arch], number, arguments)


@pytest.fixture(params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_dangerous_call_is_refused(arch: str) -> None:
    for name in (*seccomp.ALWAYS_REFUSED, *seccomp.UNCOUNTED_MEMORY):
        if seccomp.NUMBERS[name][list(ARCHITECTURES).index(arch)] is not None:
            assert answer(arch, name) == ERRNO | errno.EPERM, name


#: What container engines refuse for the harm it can do; written down here apart from the filter's own list.
WELL_KNOWN = """
    bpf delete_module finit_module init_module kcmp kexec_file_load kexec_load keyctl add_key request_key
    mount move_mount open_by_handle_at open_tree perf_event_open pivot_root process_vm_readv process_vm_writev
    ptrace quotactl reboot setns swapoff swapon syslog umount2 unshare userfaultfd io_uring_setup
    clock_settime settimeofday acct chroot personality
"""


@pytest.mark.parametrize("name", WELL_KNOWN.split())
def test_what_container_engines_refuse_is_refused(arch: str, name: str) -> None:
    assert answer(arch, name) == ERRNO | errno.EPERM


def test_ordinary_calls_pass(arch: str) -> None:
    program = seccomp.build_filter(namespaces=True, arch=arch)
    listed = {numbers[list(ARCHITECTURES).index(arch)] for numbers in seccomp.NUMBERS.values()}
    for number in set(range(seccomp.LAST_REVIEWED + 1)) - listed:
        assert run(program, ARCHITECTURES[arch], number) == ALLOW


def test_calls_of_another_architecture_kill(arch: str) -> None:
    program = seccomp.build_filter(namespaces=True, arch=arch)
    assert run(program, 0x40000003, 20) == KILL
    if arch == "x86_64":
        assert run(program, ARCHITECTURES[arch], 0x40000000 + 39) == KILL


def test_newer_calls_do_not_exist(arch: str) -> None:
    program = seccomp.build_filter(namespaces=True, arch=arch)
    for number in (seccomp.LAST_REVIEWED + 1, 470, 2000):
        assert run(program, ARCHITECTURES[arch], number) == ERRNO | errno.ENOSYS


REFUSED, PRETENDED, DENIED = ERRNO | errno.EPERM, ERRNO | 0, ERRNO | errno.EACCES
INVALID, MISSING = ERRNO | errno.EINVAL, ERRNO | errno.ENOSYS
NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
FILES, PARENT, THREAD = 0x400, 0x8000, 0x10000
SHARED, PRIVATE, VALIDATED, ANONYMOUS, HUGE, STACK = 1, 2, 3, 0x20, 0x40000, 0x20000
STREAM, DATAGRAM, RAW, SEQPACKET, CLOSE_ON_EXEC = 1, 2, 3, 5, 0o2000000
ALONE = {"namespaces": False}
SHARED_ID = {"namespaces": False, "shared_uid": True, "signal_only": 77}
#: A call, which of its arguments varies, the others, and values with their answers.
CASES: list[tuple[str, int, dict[int, int], dict[str, object], dict[int, Sequence[int]]]] = [
    ("clone3", 0, {}, {}, {MISSING: [0]}),
    ("clone", 0, {}, {}, {ALLOW: [0x3D0F00, 17], REFUSED: [17 | flag for flag in NAMESPACES]}),
    # No thread or sibling hides from the watch.
    (
        "clone",
        0,
        {},
        {},
        {ALLOW: [FILES, THREAD | FILES], REFUSED: [THREAD, PARENT, THREAD | FILES | PARENT]},
    ),
    # Memory is private or has a file.
    (
        "mmap",
        3,
        {},
        {},
        {ALLOW: [PRIVATE | ANONYMOUS, PRIVATE | ANONYMOUS | STACK, PRIVATE, SHARED, VALIDATED]},
    ),
    (
        "mmap",
        3,
        {},
        {},
        {REFUSED: [SHARED | ANONYMOUS, VALIDATED | ANONYMOUS, PRIVATE | ANONYMOUS | HUGE, SHARED | HUGE]},
    ),
    ("prctl", 0, {}, {}, {REFUSED: [1, 4, 36], ALLOW: [2, 3, 8, 15, 22, 38]}),
    # Socket buffers keep their size.
    ("setsockopt", 2, {1: 1}, {}, {PRETENDED: [7, 8, 32, 33], ALLOW: [2]}),
    ("setsockopt", 2, {1: 6}, {}, {ALLOW: [7, 8, 32, 33]}),
    # A lock on a file that all episodes see would be a message to the others.
    ("flock", 1, {}, {}, {PRETENDED: [2]}),
    ("fcntl", 1, {}, {}, {PRETENDED: [6, 7, 37, 38], INVALID: [5, 36, 1024, 1026]}),
    ("fcntl", 1, {}, {}, {ALLOW: [0, 1, 2, 3, 4, 1030, 1031, 1032]}),
    ("socket", 0, {}, {}, {ALLOW: [1], DENIED: [0, 2, 10, 16, 17, 38, 40]}),
    ("socketpair", 0, {}, {}, {DENIED: [0, 2, 10, 16, 17, 38, 40]}),
    # Without namespaces only connected pairs are left.
    ("socket", 0, {}, ALONE, {REFUSED: [1]}),
    ("connect", 0, {}, ALONE, {REFUSED: [0]}),
    ("socketpair", 1, {0: 1}, ALONE, {ALLOW: [STREAM, SEQPACKET, STREAM | CLOSE_ON_EXEC]}),
    ("socketpair", 1, {0: 1}, ALONE, {DENIED: [DATAGRAM, RAW, DATAGRAM | CLOSE_ON_EXEC]}),
    ("socketpair", 1, {0: 2}, ALONE, {DENIED: [STREAM]}),
    # Under the user's own id files and processes are guarded.
    ("fchmodat", 0, {}, SHARED_ID, {REFUSED: [0]}),
    ("kill", 0, {1: 9}, SHARED_ID, {ALLOW: [77], REFUSED: [1, 76, 0, 0xFFFFFFFF]}),
    ("prlimit64", 0, {}, SHARED_ID, {ALLOW: [0], REFUSED: [1]}),
    ("ioctl", 1, {}, {}, {REFUSED: [0x5412, 0x541C], ALLOW: [0x5401]}),
]


@pytest.mark.parametrize(("name", "varies", "others", "options", "answers"), CASES)
def test_calls_that_are_allowed_in_part(
    arch: str,
    name: str,
    varies: int,
    others: dict[int, int],
    options: dict[str, object],
    answers: dict[int, Sequence[int]],
) -> None:
    for expected, values in answers.items():
        for value in values:
            arguments = [{**others, varies: value}.get(place, 0) for place in range(6)]
            assert answer(arch, name, *arguments, **options) == expected, value
