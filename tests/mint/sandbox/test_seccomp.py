"""The filter program, run by a small interpreter of its own on both architectures."""

from __future__ import annotations

import errno
import struct

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


def test_threads_and_forks_pass_but_new_namespaces_do_not(arch: str) -> None:
    assert answer(arch, "clone", 0x3D0F00) == ALLOW
    assert answer(arch, "clone", 17) == ALLOW
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(arch, "clone", 17 | flag) == ERRNO | errno.EPERM
    assert answer(arch, "clone3") == ERRNO | errno.ENOSYS


def test_no_thread_or_sibling_hides_from_the_watch(arch: str) -> None:
    files, parent, thread = 0x400, 0x8000, 0x10000
    assert answer(arch, "clone", files) == ALLOW
    assert answer(arch, "clone", thread | files) == ALLOW
    assert answer(arch, "clone", thread) == ERRNO | errno.EPERM
    assert answer(arch, "clone", parent) == ERRNO | errno.EPERM
    assert answer(arch, "clone", thread | files | parent) == ERRNO | errno.EPERM


def test_memory_is_private_or_has_a_file(arch: str) -> None:
    shared, private, validated, anonymous, huge, stack = 1, 2, 3, 0x20, 0x40000, 0x20000
    for flags in (private | anonymous, private | anonymous | stack, private, shared, validated):
        assert answer(arch, "mmap", 0, 4096, 3, flags) == ALLOW
    for flags in (shared | anonymous, validated | anonymous, private | anonymous | huge, shared | huge):
        assert answer(arch, "mmap", 0, 4096, 3, flags) == ERRNO | errno.EPERM


def test_attributes_that_keep_a_process_in_hand_stay(arch: str) -> None:
    for option in (1, 4, 36):
        assert answer(arch, "prctl", option, 0) == ERRNO | errno.EPERM
    for option in (2, 3, 8, 15, 22, 38):
        assert answer(arch, "prctl", option) == ALLOW


def test_socket_buffers_keep_their_size(arch: str) -> None:
    pretended = ERRNO | 0
    for option in (7, 8, 32, 33):
        assert answer(arch, "setsockopt", 3, 1, option) == pretended
        assert answer(arch, "setsockopt", 3, 6, option) == ALLOW
    assert answer(arch, "setsockopt", 3, 1, 2) == ALLOW


def test_locks_are_granted_in_name_and_others_are_not_asked_about(arch: str) -> None:
    """A lock on a file that all episodes see would be a message to the others."""
    pretended = ERRNO | 0
    assert answer(arch, "flock", 3, 2) == pretended
    for command in (6, 7, 37, 38):
        assert answer(arch, "fcntl", 3, command) == pretended
    for command in (5, 36, 1024, 1026):
        assert answer(arch, "fcntl", 3, command) == ERRNO | errno.EINVAL
    for command in (0, 1, 2, 3, 4, 1030, 1031, 1032):
        assert answer(arch, "fcntl", 3, command) == ALLOW


def test_sockets_are_local_only(arch: str) -> None:
    assert answer(arch, "socket", 1) == ALLOW
    for family in (0, 2, 10, 16, 17, 38, 40):
        assert answer(arch, "socket", family) == ERRNO | errno.EACCES
        assert answer(arch, "socketpair", family) == ERRNO | errno.EACCES


def test_without_namespaces_only_connected_pairs_are_left(arch: str) -> None:
    assert answer(arch, "socket", 1, namespaces=False) == ERRNO | errno.EPERM
    assert answer(arch, "connect", namespaces=False) == ERRNO | errno.EPERM
    stream, datagram, raw, seqpacket, close_on_exec = 1, 2, 3, 5, 0o2000000
    for kind in (stream, seqpacket, stream | close_on_exec):
        assert answer(arch, "socketpair", 1, kind, namespaces=False) == ALLOW
    for kind in (datagram, raw, datagram | close_on_exec):
        assert answer(arch, "socketpair", 1, kind, namespaces=False) == ERRNO | errno.EACCES
    assert answer(arch, "socketpair", 2, stream, namespaces=False) == ERRNO | errno.EACCES


def test_under_the_users_own_id_files_and_processes_are_guarded(arch: str) -> None:
    options = {"namespaces": False, "shared_uid": True, "signal_only": 77}
    assert answer(arch, "fchmodat", **options) == ERRNO | errno.EPERM
    assert answer(arch, "kill", 77, 9, **options) == ALLOW
    for pid in (1, 76, 0, 0xFFFFFFFF):
        assert answer(arch, "kill", pid, 9, **options) == ERRNO | errno.EPERM
    assert answer(arch, "prlimit64", 0, **options) == ALLOW
    assert answer(arch, "prlimit64", 1, **options) == ERRNO | errno.EPERM


def test_terminal_injection_is_refused(arch: str) -> None:
    assert answer(arch, "ioctl", 0, 0x5412) == ERRNO | errno.EPERM
    assert answer(arch, "ioctl", 0, 0x541C) == ERRNO | errno.EPERM
    assert answer(arch, "ioctl", 0, 0x5401) == ALLOW
