"""Docker as the pool's source of episodes: one container each, from an image of empty folders.

The system and this interpreter are mounted read-only.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO

from histobench.core.redaction import environment_without_keys
from histobench.mint.sandbox.bubblewrap import GUEST_PARENT, NOBODY, scratch_folder
from histobench.mint.sandbox.guest.frames import Channel
from histobench.mint.sandbox.launch import SessionSetup, guest_command, guest_environment, session_config
from histobench.mint.sandbox.limits import Limits
from histobench.mint.sandbox.visible_files import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    ancestors,
    guest_folder,
    interpreter_folders,
    withheld_within,
)
from histobench.mint.sandbox.zygote_process import SEND_SECONDS, SandboxError, last_line

_ENGINE_SECONDS = 120
_NO_LIMIT = 1 << 20
_MOST_OF_A_USER = 32_768


class DockerFleet:
    def __init__(self, setup: SessionSetup) -> None:
        if shutil.which("docker") is None:
            raise SandboxError("cannot start the docker sandbox: docker is not installed")
        self.pid = os.getpid()
        self._running: dict[int, tuple[str, subprocess.Popen[bytes], IO[bytes]]] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self._removers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="container-remover")
        scratch = scratch_folder()
        # The engine counts processes; the kernel's count goes by user id and would include other containers.
        own = replace(setup, limits=replace(setup.limits, processes=_NO_LIMIT))
        self._config = {"op": "config", **session_config(own, scratch)}
        environment = guest_environment(scratch, setup.hash_seed)
        self._options = run_options(setup.limits, environment, withheld=setup.withheld)
        self._image = _docker("import", "-", given=_empty_image()).decode().strip()

    def alive(self) -> bool:
        return not self._closed

    def spawn(self) -> tuple[int, Channel]:
        """Start one more container; return at once its number and the host's end of its streams."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(SEND_SECONDS)
        number = next(self._numbers)
        container = f"histobench-{os.getpid()}-{secrets.token_hex(6)}"
        inner = guest_command("solo", GUEST_PARENT)
        errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            process = subprocess.Popen(
                ["docker", "run", "--name", container, *self._options, self._image, *inner],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=errors,
                cwd="/",
                env=environment_without_keys(),
                start_new_session=True,  # the host's Ctrl-C is the host's business
            )
        self._running[number] = (container, process, errors)
        channel = Channel(ours)
        with contextlib.suppress(OSError):  # it has ended already: `end_of` says why
            channel.send(self._config)
        return number, channel

    def kill(self, number: int) -> None:
        """End a container and everything in it; harmless when it has ended already."""
        if found := self._running.pop(number, None):
            self._removers.submit(_remove, *found)

    def end_of(self, number: int) -> str:
        """Return what the engine said of a container that did not start or has ended."""
        found = self._running.get(number)
        return last_line(found[1], found[2]) if found else ""

    def close(self) -> None:
        self._closed = True
        for number in list(self._running):
            self.kill(number)
        self._removers.shutdown(wait=True)
        with contextlib.suppress(SandboxError):
            _docker("rmi", self._image)


def _remove(container: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    for _ in range(2):  # again if it was still being made when the first order came
        with contextlib.suppress(SandboxError):
            _docker("rm", "--force", container)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            break
        process.kill()
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
    return options + [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]


def _binds() -> list[tuple[str, str]]:
    folders = [folder for folder in SYSTEM_FOLDERS if os.path.isdir(folder) and not os.path.islink(folder)]
    seen = [*folders, *filter(os.path.exists, SYSTEM_FILES), *interpreter_folders()]
    return [*((path, path) for path in seen), (guest_folder(), f"{GUEST_PARENT}/guest")]


def _empty_image() -> bytes:
    entries = dict.fromkeys(filter(os.path.islink, SYSTEM_FOLDERS), tarfile.SYMTYPE)
    places = {inside: os.path.isdir(outside) for outside, inside in _binds()}
    for inside, is_folder in {**places, **dict.fromkeys(("/proc", "/dev", "/tmp"), True)}.items():
        entries |= dict.fromkeys(ancestors(inside), tarfile.DIRTYPE)
        entries[inside] = tarfile.DIRTYPE if is_folder else tarfile.REGTYPE
    entries[scratch_folder()] = tarfile.DIRTYPE
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as image:
        for path, kind in entries.items():
            entry = tarfile.TarInfo(f".{path}")
            entry.type = kind
            entry.linkname = os.readlink(path) if kind == tarfile.SYMTYPE else ""
            # The engine copies the mode of the scratch folder to what it mounts there.
            entry.mode = 0o1777 if path == scratch_folder() else 0o755
            image.addfile(entry)
    return archive.getvalue()


def _docker(*arguments: str, given: bytes | None = None) -> bytes:
    try:
        done = subprocess.run(
            ["docker", *arguments],
            input=given or b"",
            capture_output=True,
            check=False,
            timeout=_ENGINE_SECONDS,
            env=environment_without_keys(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"cannot start the docker sandbox: {error}") from error
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip() or f"docker {arguments[0]} failed"
        raise SandboxError(f"cannot start the docker sandbox: {why.splitlines()[-1]}")
    return done.stdout
