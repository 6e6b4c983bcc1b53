"""Docker as the pool's source of episodes: one container for each, started and removed by the engine.

The root file system is an image made of empty folders; the system and this interpreter are mounted read-only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO

from histobench.core.redaction import environment_without_keys
from histobench.mint.sandbox.bubblewrap import GUEST_PARENT, NOBODY, scratch_folder
from histobench.mint.sandbox.guest.frames import Channel
from histobench.mint.sandbox.interpreter import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    guest_folder,
    interpreter_folders,
)
from histobench.mint.sandbox.launch import SessionSetup, guest_command, guest_environment
from histobench.mint.sandbox.limits import Limits
from histobench.mint.sandbox.withheld import withheld_within
from histobench.mint.sandbox.zygote_process import SEND_SECONDS, SandboxError, last_line

_PREPARE_SECONDS = 120
_REMOVE_SECONDS = 60.0
_NO_LIMIT = 1 << 20
_MOST_OF_A_USER = 32_768


class DockerFleet:
    """The running containers of one pool."""

    def __init__(self, setup: SessionSetup) -> None:
        if shutil.which("docker") is None:
            raise SandboxError("cannot start the docker sandbox: docker is not installed")
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._running: dict[int, tuple[str, subprocess.Popen[bytes], IO[bytes]]] = {}
        self._next = 0
        self._closed = False
        self._removers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="container-remover")
        scratch = scratch_folder()
        environment = guest_environment(scratch, setup.hash_seed)
        # The engine counts processes; the kernel's count goes by user id and would include other containers.
        own = {**asdict(setup.limits), "processes": _NO_LIMIT}
        packages = [*SYSTEM_FOLDERS, *interpreter_folders()]
        self._config = {"op": "config", "preload": list(setup.preload), "shell": setup.shell, "limits": own}
        self._config |= {"packages": packages, "scratch_root": scratch}
        self._options = run_options(setup.limits, environment, withheld=setup.withheld)
        self._image = _made_image()

    def alive(self) -> bool:
        """Return whether containers can still be started."""
        return not self._closed

    def spawn(self) -> tuple[int, Channel]:
        """Start one more container; return at once its number and the host's end of its streams."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(SEND_SECONDS)
        with self._lock:
            self._next += 1
            number = self._next
        container = f"histobench-{os.getpid()}-{secrets.token_hex(6)}"
        inner = guest_command("solo", GUEST_PARENT)
        errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            try:
                process = subprocess.Popen(
                    ["docker", "run", "--name", container, *self._options, self._image, *inner],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=errors,
                    cwd="/",
                    env=environment_without_keys(),
                    start_new_session=True,  # the host's Ctrl-C is the host's business
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"cannot start the docker sandbox: {error}") from error
        with self._lock:
            self._running[number] = (container, process, errors)
        channel = Channel(ours)
        channel.send(self._config)
        return number, channel

    def complaint(self, number: int) -> str:
        """Return what the engine said when a container did not start."""
        with self._lock:
            found = self._running.get(number)
        return last_line(found[1], found[2]) if found else ""

    def kill(self, number: int) -> None:
        """End a container and everything in it; harmless when it has ended already."""
        with self._lock:
            found = self._running.pop(number, None)
            if found is not None:
                self._removers.submit(self._remove, *found)

    def end_of(self, number: int, *, wait: float = 1.0) -> str:
        """Return nothing: the engine does not tell which limit ended a container."""
        return ""

    def close(self) -> None:
        self._closed = True
        for number in list(self._running):
            self.kill(number)
        self._removers.shutdown(wait=True)
        with contextlib.suppress(SandboxError):
            _output(["docker", "rmi", self._image])

    def _remove(self, container: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        _order_removal(container)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        if process.poll() is None:  # it was still being made when the order came
            process.kill()
            process.wait()
            _order_removal(container)
        errors.close()


def run_options(limits: Limits, environment: dict[str, str], *, withheld: Sequence[str]) -> list[str]:
    """Return the options of `docker run`; the engine's control group limits memory and processes."""
    scratch = scratch_folder()
    memory = f"{limits.memory_mb + 2 * limits.scratch_mb}m"
    options = ["--rm", "--interactive", "--network", "none", "--read-only", "--cap-drop", "all"]
    options += ["--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}"]
    options += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes)]
    options += ["--ulimit", f"nofile={limits.open_files}:{limits.open_files}", "--ulimit", "core=0:0"]
    # Counted by user id, so of no use here; named because an engine may wish for more than it can have.
    options += ["--ulimit", f"nproc={_MOST_OF_A_USER}:{_MOST_OF_A_USER}"]
    options += ["--log-driver", "none", "--hostname", "sandbox", "--shm-size", f"{limits.scratch_mb}m"]
    tmpfs = f"rw,nosuid,nodev,size={limits.scratch_mb}m,mode=1777"
    options += ["--tmpfs", f"{scratch}:{tmpfs}", "--workdir", scratch]
    for outside, inside in _binds():
        options += ["--volume", f"{outside}:{inside}:ro"]
        for path in withheld_within(outside, withheld) if os.path.isdir(outside) else ():
            is_folder = os.path.isdir(path)
            options += (
                ["--tmpfs", f"{path}:ro,size=4k"] if is_folder else ["--volume", f"{os.devnull}:{path}:ro"]
            )
    for name, value in environment.items():
        options += ["--env", f"{name}={value}"]
    return options


def _binds() -> list[tuple[str, str]]:
    """Return what a container sees of the host: path outside, path inside."""
    folders = [folder for folder in SYSTEM_FOLDERS if os.path.isdir(folder) and not os.path.islink(folder)]
    seen = [*folders, *filter(os.path.exists, SYSTEM_FILES), *interpreter_folders()]
    return [*((path, path) for path in seen), (guest_folder(), f"{GUEST_PARENT}/guest")]


def _made_image() -> str:
    """Return the name of an image with the system's links and a place for every mount."""
    with tempfile.TemporaryDirectory(prefix="histobench-image-") as folder:
        root = Path(folder)
        for link in filter(os.path.islink, SYSTEM_FOLDERS):
            (root / link.lstrip("/")).symlink_to(os.readlink(link))
        for inside in (scratch_folder(), "/proc", "/dev", "/tmp"):
            (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for outside, inside in _binds():
            place = root / inside.lstrip("/")
            if os.path.isdir(outside):
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        for path in (root, *root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        (root / scratch_folder().lstrip("/")).chmod(0o1777)  # the engine copies this to what it mounts there
        archive = _output(["tar", "--create", "--directory", folder, "."])
    return _output(["docker", "import", "-"], archive).decode().strip()


def _output(command: list[str], given: bytes | None = None) -> bytes:
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            check=False,
            timeout=_PREPARE_SECONDS,
            env=environment_without_keys(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"cannot start the docker sandbox: {command[0]}: {error}") from error
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip() or f"{command[0]} failed"
        raise SandboxError(f"cannot start the docker sandbox: {why.splitlines()[-1]}")
    return done.stdout


def _order_removal(container: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["docker", "rm", "--force", container],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_REMOVE_SECONDS,
            env=environment_without_keys(),
        )
