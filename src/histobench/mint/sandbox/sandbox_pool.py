"""A pool of sandboxed Python sessions: one zygote, a fork of it for each."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from histobench.mint.sandbox.code_session import CodeSession, Session
from histobench.mint.sandbox.docker import DockerFleet
from histobench.mint.sandbox.launch import SessionSetup
from histobench.mint.sandbox.zygote_process import SandboxError, ZygoteProcess

DOCKER = "docker"


class SandboxPool:
    """Hands out fresh sessions; usable from many threads at once."""

    def __init__(self, backend: str, setup: SessionSetup) -> None:
        self.backend = backend
        self.limits = setup.limits
        self._setup = setup
        self._for_tests: ZygoteProcess | None = None  # started when it is needed
        self._lock = threading.Lock()
        self._closed = False
        self._owner = os.getpid()
        self._zygote = self._start()
        try:
            # One session proves that confining works here; a pool that opens is a pool that isolates.
            with contextlib.closing(Session(self._zygote)) as first:
                first.open()
        except BaseException:
            self._zygote.close()
            raise

    def episode(self, tools: Mapping[str, Callable[..., Any]] | None = None) -> CodeSession:
        """A fresh Python session that can call `tools`, which run here, by their names."""
        return CodeSession(self.take, dict(tools or {}), limits=self.limits)

    def take(self) -> Session:
        with self._lock:
            self._require_open()
            if not self._zygote.alive():
                self._zygote.close()
                self._zygote = self._start()
            return Session(self._zygote)

    def take_for_tests(self) -> Session:
        """A fresh session of a zygote of its own: no address and no hash seed of the others is true in it."""
        if self.backend == DOCKER:
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
        return self._zygote.pid

    def is_lost_since(self, pid: int) -> bool:
        """Whether the zygote that had this process id has ended; another may have followed it."""
        return self._zygote.pid != pid or not self._zygote.alive()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._zygote.close()
                if self._for_tests is not None:
                    self._for_tests.close()

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> ZygoteProcess | DockerFleet:
        return (
            DockerFleet(self._setup) if self.backend == DOCKER else ZygoteProcess(self.backend, self._setup)
        )

    def _require_open(self) -> None:
        if not self.is_own():
            raise SandboxError("this sandbox pool belongs to the process that opened it; open a new one")
        if self._closed:
            raise SandboxError("this sandbox pool is closed; open a new one")
