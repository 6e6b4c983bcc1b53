"""Which sandbox this machine can offer, and why not a stronger one."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec

from histobench.core.errors import did_you_mean
from histobench.mint.sandbox.launch import SessionSetup
from histobench.mint.sandbox.limits import SCIENCE, Limits
from histobench.mint.sandbox.sandbox_pool import SandboxPool
from histobench.mint.sandbox.visible_files import withheld_paths
from histobench.mint.sandbox.zygote_process import SandboxError

#: How strong each backend is. All share the host's kernel.
STRENGTH = {
    "bubblewrap": "own namespaces, no capabilities, a filter on system calls",
    "landlock": "file rules and a filter on system calls; sees file names and process numbers",
    "docker": "a container and a filter on system calls; slow to start",
    "unsafe": "isolates nothing",
}
#: What `auto` tries, the strongest first.
ISOLATING = ("bubblewrap", "landlock")

_shared: SandboxPool | None = None
_lock = threading.Lock()


def check_sandbox(name: str) -> None:
    if name not in (known := ("auto", *STRENGTH)):
        raise SandboxError(f"unknown sandbox {name!r}; {did_you_mean(name, known)}")


def open_sandbox(
    backend: str = "auto",
    *,
    preload: tuple[str, ...] | None = None,
    shell: str | None = None,
    limits: Limits | None = None,
    withhold: Iterable[str | os.PathLike[str]] = (),
) -> SandboxPool:
    """Open a pool on the strongest backend that works here, or on the one named.

    `preload` are the modules every session starts with (default: the scientific ones that are installed);
    `shell` is "ipython" or "plain". `unsafe` isolates nothing and is only ever used when named.
    `withhold` are files and folders that no session may read even where they lie among the interpreter's own,
    besides those that always are: this package, plug-ins with tasks, and the working folder.
    """
    check_sandbox(backend)
    if preload is None:
        preload = tuple(name for name in SCIENCE if find_spec(name.partition(".")[0]))
    shell = shell or ("ipython" if find_spec("IPython") else "plain")
    setup = SessionSetup(preload, shell, limits or Limits(), withheld_paths(withhold))
    if backend != "auto":
        return SandboxPool(backend, setup)
    refusals = []
    for name in ISOLATING:
        try:
            return SandboxPool(name, setup)
        except SandboxError as error:
            refusals.append(f"{name}: {error}")
    raise SandboxError(
        f"no sandbox works on this machine ({'; '.join(refusals)}); install bubblewrap, "
        "or name the sandbox 'unsafe' to run model code with your own rights"
    )


@cache
def backend_works(name: str) -> str:
    """ "" when the backend isolates here, else the reason why it cannot. Tried for real, with one process."""
    try:
        open_sandbox(name, preload=(), shell="plain").close()
    except SandboxError as error:
        return str(error)
    return ""


def active_backend() -> tuple[str, str]:
    """The backend that `auto` takes on this machine and why; ("none", why) where none works."""
    reasons: list[str] = []
    for name in ISOLATING:
        if not (refusal := backend_works(name)):
            return name, "; ".join(reasons) or "the first choice works here"
        reasons.append(refusal)
    return "none", "; ".join(reasons)


def shared_pool() -> SandboxPool:
    """The pool of this process with the default settings, opened at the first call."""
    global _shared
    with _lock:
        if _shared is None or not _shared.is_own():
            _shared = open_sandbox()
            atexit.register(_shared.close)
        return _shared
