"""Which sandbox this machine can offer, and why not a stronger one."""

from __future__ import annotations

import atexit
import shutil
import threading
from functools import cache

from histobench.mint.sandbox.control_groups import group_for_episodes
from histobench.mint.sandbox.pool import ISOLATING, SandboxPool, open_sandbox
from histobench.mint.sandbox.zygote_process import SandboxError

# How strong each is, in a line. All but gVisor share the host's kernel.
STRENGTH = {
    "bubblewrap": "own namespaces, no capabilities, a filter on system calls; shares the host's kernel",
    "landlock": "file rules and a filter on system calls; shares the host's kernel and sees file names and "
    "process numbers",
    "gvisor": "a kernel of its own in user space: the strongest; slow to start",
    "podman": "a container and a filter on system calls; shares the host's kernel, slow to start",
    "docker": "a container and a filter on system calls; shares the host's kernel, slow to start",
    "unsafe": "isolates nothing",
}
_PROGRAMS = {"gvisor": "runsc", "podman": "podman", "docker": "docker"}

_shared: SandboxPool | None = None
_lock = threading.Lock()


@cache
def backend_works(name: str) -> str:
    """ "" when the backend isolates here, else the reason why it cannot. Tried for real, with one process."""
    try:
        open_sandbox(name, preload=(), shell="plain", warm=0).close()
    except SandboxError as error:
        return str(error)
    return ""


def active_backend() -> tuple[str, str]:
    """The backend that `auto` takes on this machine and why; ("none", why) where none works."""
    reasons: list[str] = []
    for name in ISOLATING:
        refusal = backend_works(name)
        if not refusal:
            return name, "; ".join(reasons) or "the first choice works here"
        reasons.append(refusal)
    return "none", "; ".join(reasons)


def installed_engines() -> list[str]:
    """The backends whose container engine is installed; whether it works is seen when it is named."""
    return [name for name, program in _PROGRAMS.items() if shutil.which(program)]


def who_limits() -> str:
    """Who holds an episode to its limits of memory and processes, in words."""
    group, why_not = group_for_episodes()
    if group is not None:
        return f"memory and processes are limited by the kernel (control groups beneath {group})"
    return f"memory is watched five times a second ({why_not})"


def shared_pool() -> SandboxPool:
    """The pool of this process with the default settings, opened at the first call."""
    global _shared
    with _lock:
        if _shared is None or not _shared.is_own():
            _shared = open_sandbox()
            atexit.register(_shared.close)
        return _shared
