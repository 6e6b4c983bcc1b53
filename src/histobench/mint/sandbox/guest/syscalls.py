"""The few Linux calls that Python does not wrap: namespaces, mounts, capabilities, prctl."""

from __future__ import annotations

import ctypes
import os
import platform

NEW_MOUNT = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000

NOSUID_NODEV = 0x2 | 0x4
NOSUID_NODEV_NOEXEC = 0x2 | 0x4 | 0x8

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_AMBIENT_RAISE = 2
_AMBIENT_CLEAR_ALL = 4

CAP_DAC_READ_SEARCH = 2
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION_3 = 0x20080522
_CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.syscall.restype = ctypes.c_long


def machine() -> str:
    """The kernel's name of this processor, one of the two this sandbox is written for.

    >>> machine() in ("x86_64", "aarch64")
    True
    """
    name = platform.machine()
    if name == "arm64":
        name = "aarch64"
    if name not in _CAPSET:
        raise OSError(f"the sandbox has no system-call table for {name}")
    return name


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    check(_libc.setns(descriptor, flags), "setns")


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    data = options.encode() or None
    check(_libc.mount(kind.encode(), target.encode(), kind.encode(), flags, data), f"mount {target}")


def prctl(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return check(_libc.prctl(option, *padded), f"prctl {option}")


def syscall(number: int, *arguments: object) -> int:
    """A raw system call with integer or ctypes arguments; raises on failure."""
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(_libc.syscall(ctypes.c_long(number), *passed), f"syscall {number}")


def bound_capabilities(kept: tuple[int, ...] = ()) -> None:
    """Make every capability but `kept` unobtainable, for this process and for what it starts."""
    for number in range(_LAST_CAPABILITY + 1):
        # Fails for numbers this kernel does not know.
        if number not in kept and _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break


def keep_only_capabilities(kept: tuple[int, ...] = ()) -> None:
    """Give up every capability held but `kept`."""
    prctl(PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    mask = sum(1 << number for number in kept)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    words = [mask & 0xFFFFFFFF] * 3 + [mask >> 32] * 3
    syscall(_CAPSET[machine()], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(*words)))
    for number in kept:
        prctl(PR_CAP_AMBIENT, _AMBIENT_RAISE, number)
