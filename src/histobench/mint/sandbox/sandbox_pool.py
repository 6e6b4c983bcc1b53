"""A pool of sandboxed Python sessions: one zygote, a few forks kept warm."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import cache_from_source, find_spec
from typing import Any

from histobench.core.errors import did_you_mean
from histobench.core.redaction import environment_without_keys
from histobench.mint.sandbox.code_session import CodeSession, Session
from histobench.mint.sandbox.container_fleet import CONTAINERS, ContainerFleet
from histobench.mint.sandbox.control_groups import group_for_episodes
from histobench.mint.sandbox.launch import SessionSetup
from histobench.mint.sandbox.limits import SCIENCE, Limits
from histobench.mint.sandbox.withheld import withheld_paths
from histobench.mint.sandbox.zygote_process import SandboxError, ZygoteProcess

# Compiled modules on disk: without them every start of a zygote compiles the scientific packages anew.


def ensure_compiled(modules: tuple[str, ...]) -> None:
    """Import `modules` once in a process that may write their bytecode, where that is missing and writable.

    Inside the sandbox the packages are read-only, and an environment with PYTHONDONTWRITEBYTECODE (common in
    container images) never wrote them outside either.
    """
    if any(_lacks_bytecode(name) for name in modules):
        environment = environment_without_keys()
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # A module that fails to import is reported when the zygote loads it.
        command = [sys.executable, "-c", "; ".join(f"import {name}" for name in modules)]
        subprocess.run(
            command, env=environment, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def _lacks_bytecode(name: str) -> bool:
    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return False
    compiled = cache_from_source(spec.origin)
    folder = os.path.dirname(spec.origin)
    return not os.path.exists(compiled) and os.access(folder, os.W_OK)


ISOLATING = ("bubblewrap", "landlock")


class SandboxPool:
    """Hands out fresh sessions; usable from many threads at once."""

    def __init__(self, backend: str, setup: SessionSetup, *, warm: int) -> None:
        self.backend = backend
        self.limits = setup.limits
        self._setup = setup
        self._source = ContainerFleet if backend in CONTAINERS else ZygoteProcess
        self._for_tests: ZygoteProcess | None = None  # started when it is needed
        self._lock = threading.Lock()
        self._warm = warm
        self._idle: deque[Session] = deque()
        self._closed = False
        self._owner = os.getpid()
        self._zygote: ZygoteProcess | ContainerFleet = self._source(backend, setup)
        try:
            # The first session proves that confining works here; a pool that opens is a pool that isolates.
            first = Session(self._zygote)
            first.open()
        except BaseException:
            self._zygote.close()
            raise
        self._idle.append(first)
        self._refill()

    def episode(self, tools: Mapping[str, Callable[..., Any]] | None = None) -> CodeSession:
        """A fresh Python session that can call `tools`, which run here, by their names."""
        return CodeSession(self.take, dict(tools or {}), limits=self.limits)

    def take(self) -> Session:
        """A fresh session, warm if there is one; the caller closes it."""
        with self._lock:
            self._require_open()
            if not self._zygote.alive():
                for session in self._idle:
                    session.channel.close()
                self._idle.clear()
                self._zygote.close()
                self._zygote = self._source(self.backend, self._setup)
            session = self._idle.popleft() if self._idle else Session(self._zygote)
            self._refill()
            return session

    def take_for_tests(self) -> Session:
        """A fresh session that shares no memory layout and no hash seed with the others.

        Its process is a fork of a zygote of its own: nothing that a program learns about addresses in its
        process is true in this one.
        """
        if self.backend in CONTAINERS:
            return self.take()  # a container is a new program each time, and needs no second source
        with self._lock:
            self._require_open()
            if self._for_tests is None or not self._for_tests.alive():
                if self._for_tests is not None:
                    self._for_tests.close()
                preload = tuple(name for name in self._setup.preload if name == "numpy")
                seed = self._setup.hash_seed + 1
                setup = replace(self._setup, preload=preload, shell="plain", hash_seed=seed)
                self._for_tests = ZygoteProcess(self.backend, setup)
            return Session(self._for_tests)

    def is_own(self) -> bool:
        """Whether this process opened the pool, not one that it was forked from."""
        return self._owner == os.getpid()

    @property
    def pid(self) -> int:
        """Process id of the zygote's outermost process."""
        return self._zygote.pid

    def is_lost_since(self, pid: int) -> bool:
        """Whether the zygote that had this process id has ended; another may have followed it."""
        return self._zygote.pid != pid or not self._zygote.alive()

    def close(self) -> None:
        """End every session and the zygote."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for session in self._idle:
                    session.channel.close()
                self._idle.clear()
                self._zygote.close()
                if self._for_tests is not None:
                    self._for_tests.close()

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if not self.is_own():
            raise SandboxError("this sandbox pool belongs to the process that opened it; open a new one")
        if self._closed:
            raise SandboxError("this sandbox pool is closed; open a new one")

    def _refill(self) -> None:
        while len(self._idle) < self._warm:
            self._idle.append(Session(self._zygote))


def check_sandbox(name: str) -> None:
    """Raise where there is no sandbox of this name."""
    if name not in (known := ("auto", *ISOLATING, *CONTAINERS, "unsafe")):
        raise SandboxError(f"unknown sandbox {name!r}; {did_you_mean(name, known)}")


def open_sandbox(
    backend: str = "auto",
    *,
    preload: tuple[str, ...] | None = None,
    shell: str | None = None,
    limits: Limits | None = None,
    warm: int = 2,
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
    ensure_compiled((*preload, "IPython.core.interactiveshell") if shell == "ipython" else preload)
    setup = SessionSetup(preload, shell, limits or Limits(), withheld_paths(withhold))
    if backend != "auto":
        return SandboxPool(backend, setup, warm=warm)
    refusals = []
    for name in ISOLATING:
        try:
            return SandboxPool(name, setup, warm=warm)
        except SandboxError as error:
            refusals.append(f"{name}: {error}")
    raise SandboxError(
        f"no sandbox works on this machine ({'; '.join(refusals)}); install bubblewrap, "
        "or name the sandbox 'unsafe' to run model code with your own rights"
    )


# Which sandbox this machine can offer, and why not a stronger one.

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
