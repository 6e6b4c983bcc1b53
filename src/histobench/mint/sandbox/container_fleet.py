"""Containers as the pool's source of episodes: one container for each, started and removed by an engine."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import IO

from histobench.core.redaction import environment_without_keys
from histobench.mint.sandbox.bubblewrap import GUEST_PARENT
from histobench.mint.sandbox.container_engines import EngineError, Surroundings, container_view, engine_named
from histobench.mint.sandbox.guest.frames import Channel
from histobench.mint.sandbox.guest.scratch import claimed_folder, remove_tree
from histobench.mint.sandbox.interpreter import SYSTEM_FOLDERS, interpreter_folders
from histobench.mint.sandbox.launch import SessionSetup, guest_command, guest_environment
from histobench.mint.sandbox.zygote_process import SandboxError, last_line

CONTAINERS = ("gvisor", "podman", "docker")

_SEND_SECONDS = 10.0
_REMOVE_SECONDS = 60.0
_NO_LIMIT = 1 << 20


class ContainerFleet:
    """The running containers of one pool."""

    def __init__(self, backend: str, setup: SessionSetup) -> None:
        self.backend = backend
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._running: dict[int, tuple[str, subprocess.Popen[bytes], IO[bytes]]] = {}
        self._next = 0
        self._closed = False
        self._removers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="container-remover")
        self._folder, self._claim = claimed_folder("histobench-containers-")
        view = container_view(setup.withheld)
        environment = guest_environment(view.scratch, setup.hash_seed)
        around = Surroundings(self._folder, view, environment, setup.limits)
        os.mkdir(around.root())
        view.make_root(around.root())
        # The engine counts processes; the kernel's count goes by user id and would include other containers.
        own = {**asdict(setup.limits), "processes": _NO_LIMIT}
        packages = [*SYSTEM_FOLDERS, *interpreter_folders()]
        self._config = {"op": "config", "preload": list(setup.preload), "shell": setup.shell, "limits": own}
        self._config |= {"packages": packages, "scratch_root": view.scratch}
        self._engine = engine_named(backend, around)
        try:
            self._engine.prepare()
        except EngineError as error:
            self.close()
            raise SandboxError(f"cannot start the {backend} sandbox: {error}") from error

    def alive(self) -> bool:
        """Whether containers can still be started."""
        return not self._closed

    def spawn(self) -> tuple[int, Channel]:
        """Start one more container; returns at once with its number and the host's end of its streams."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(_SEND_SECONDS)
        with self._lock:
            self._next += 1
            number = self._next
        container = f"histobench-{os.getpid()}-{secrets.token_hex(6)}"
        inner = guest_command("solo", GUEST_PARENT)
        errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            try:
                process = subprocess.Popen(
                    self._engine.run(container, inner),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=errors,
                    cwd="/",
                    env=environment_without_keys(),
                    start_new_session=True,  # the host's Ctrl-C is the host's business
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"cannot start the {self.backend} sandbox: {error}") from error
        with self._lock:
            self._running[number] = (container, process, errors)
        channel = Channel(ours)
        channel.send(self._config)
        return number, channel

    def enclose(self, number: int, pid: int) -> None:
        """Nothing: a container is a control group already, or has a kernel of its own."""

    def complaint(self, number: int) -> str:
        """What the engine said when a container did not start."""
        with self._lock:
            found = self._running.get(number)
        if found is None:
            return ""
        _, process, errors = found
        return last_line(process, errors)

    def kill(self, number: int) -> None:
        """End a container and everything in it; harmless when it has ended already."""
        with self._lock:
            found = self._running.pop(number, None)
            if found is not None:
                self._removers.submit(self._remove, *found)

    def end_of(self, number: int, *, wait: float = 1.0) -> str:
        """Nothing is known about why: the engine does not tell apart what the kernel ended."""
        return ""

    def close(self) -> None:
        self._closed = True
        for number in list(self._running):
            self.kill(number)
        self._removers.shutdown(wait=True)
        remove_tree(self._folder)
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1

    def _remove(self, container: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._order_removal(container)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        if process.poll() is None:  # it was still being made when the order came
            process.kill()
            process.wait()
            self._order_removal(container)
        errors.close()

    def _order_removal(self, container: str) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                self._engine.remove(container),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=_REMOVE_SECONDS,
                env=environment_without_keys(),
            )
