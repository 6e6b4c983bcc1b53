"""What a freshly forked episode does to itself before it reads a line of model code."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from typing import Any

from . import landlock, seccomp
from . import syscalls as kernel
from .cell_limits import RESERVE_BYTES
from .processes import threads_of
from .syscalls import bound_capabilities, keep_only_capabilities, mount, prctl, unshare

MEGABYTE = 1 << 20
SHARED_MEMORY = "/dev/shm"
_PENDING_SIGNALS = 1024

# What a process may read about itself. Network, mounts and other processes are the machine's business.
_ABOUT_ITSELF = (
    *("cmdline", "comm", "fd", "fdinfo", "io", "limits", "maps", "schedstat", "smaps_rollup", "stat"),
    *("statm", "status"),
)


def confine_in_namespaces(limits: dict[str, Any], *, scratch: str) -> None:
    """Own mount, network, ipc, host-name and user namespaces (the pid one came with the fork)."""
    user, group = os.getuid(), os.getgid()
    unshare(kernel.NEW_MOUNT | kernel.NEW_UTS | kernel.NEW_IPC | kernel.NEW_NET)
    mount("proc", "/proc", kernel.NOSUID_NODEV_NOEXEC)
    size = f"size={limits['scratch_mb']}m,nr_inodes=16384"
    mount("tmpfs", scratch, kernel.NOSUID_NODEV, f"{size},mode=1777")
    mount("tmpfs", SHARED_MEMORY, kernel.NOSUID_NODEV, f"{size},mode=1777")
    # Last, so that the mounts belong to a user namespace in which this process holds nothing.
    unshare(kernel.NEW_USER)
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    _prefer_as_victim_of_memory_shortage()
    os.chdir(scratch)
    set_limits(limits)
    bound_capabilities()
    keep_only_capabilities()
    prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    # Closes what file permissions cannot: /dev/zero, whose shared mappings no limit reaches, and the settings
    # of this process in /proc.
    landlock.restrict_writing([scratch, SHARED_MEMORY, "/dev/null", "/dev/full"])
    seccomp.install_filter(seccomp.packed_filter(namespaces=True))


def confine_with_landlock(
    limits: dict[str, Any],
    *,
    readable: list[str],
    listable: list[str],
    scratch: str,
    uid: int | None,
    behind_closed_folder: bool,
) -> None:
    """File rules by Landlock, the rest by seccomp, limits and, where root allows it, an own user id.

    `behind_closed_folder`: the interpreter lies under a folder that only root can enter.
    """
    _prefer_as_victim_of_memory_shortage()
    os.chdir(scratch)
    if uid is not None:
        # Landlock still bounds what this one capability opens.
        kept = (kernel.CAP_DAC_READ_SEARCH,) if behind_closed_folder else ()
        bound_capabilities(kept)
        prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        keep_only_capabilities(kept)
        prctl(kernel.PR_SET_DUMPABLE, 1)
    stay_in_the_zygotes_hands()
    set_limits(limits, others=threads_of(os.getuid()) if uid is None else 0)
    about_itself = [f"/proc/{os.getpid()}/{name}" for name in _ABOUT_ITSELF]
    landlock.restrict_files([*readable, *about_itself], [scratch, "/dev/null"], listable)
    scoped = uid is not None or landlock.landlock_version() >= landlock.SIGNAL_SCOPE_VERSION
    program = seccomp.packed_filter(
        namespaces=False, shared_uid=uid is None, signal_only=None if scoped else os.getpid()
    )
    seccomp.install_filter(program)


def stay_in_the_zygotes_hands() -> None:
    """Die with the zygote (lost when the user id changes), and adopt what an own child leaves behind."""
    prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def set_limits(limits: dict[str, Any], *, others: int = 0) -> None:
    """The resource limits of one process; `others` already run under the same user id and count as well."""
    for which, value in (
        (resource.RLIMIT_AS, limits["memory_mb"] * MEGABYTE + RESERVE_BYTES),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * MEGABYTE),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, MEGABYTE),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        (resource.RLIMIT_NPROC, others + limits["processes"]),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (limit, limit))


def _prefer_as_victim_of_memory_shortage() -> None:
    with contextlib.suppress(OSError):  # not every container lets it be written; the limits hold without it
        _write("/proc/self/oom_score_adj", "1000")


def _write(path: str, text: str) -> None:
    with open(path, "wb", buffering=0) as handle:
        handle.write(text.encode())
