"""How a container engine is asked to run an episode: Docker and Podman by options, gVisor by a bundle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.redaction import environment_without_keys
from histobench.mint.sandbox.bubblewrap import GUEST_PARENT, NOBODY, scratch_folder
from histobench.mint.sandbox.interpreter import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    guest_folder,
    interpreter_folders,
)
from histobench.mint.sandbox.limits import Limits
from histobench.mint.sandbox.withheld import withheld_within

_PREPARE_SECONDS = 120
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_MOST_OF_A_USER = 32_768
_MEGABYTE = 1 << 20
_GVISOR_MEGABYTES, _GVISOR_THREADS = 128, 128  # what its own kernel takes beside the episode


class EngineError(Exception):
    """The engine is missing or refuses."""


# What a container shows of the host: the system and this interpreter, read-only, on an empty root.


@dataclass(frozen=True)
class ContainerView:
    """Bind mounts (host path, path inside), folders and files that appear empty, and symbolic links."""

    binds: tuple[tuple[str, str], ...]
    empty_folders: tuple[str, ...]
    empty_files: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # where it points, where it lies
    scratch: str

    def make_root(self, folder: str) -> None:
        """Fill the empty `folder` with the links and with a place for every mount."""
        root = Path(folder)
        for target, link in self.links:
            (root / link.lstrip("/")).symlink_to(target)
        places = [inside for outside, inside in self.binds if os.path.isdir(outside)]
        for inside in (*places, self.scratch, "/proc", "/dev", "/tmp"):
            (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for _, inside in self.binds:
            place = root / inside.lstrip("/")
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        for path in (root, *root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        (root / self.scratch.lstrip("/")).chmod(0o1777)  # engines copy this to what they mount there


def container_view(withheld: Sequence[str]) -> ContainerView:
    """The view for this interpreter, without what is `withheld`."""
    links, binds = [], []
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            links.append((os.readlink(folder), folder))
        elif os.path.isdir(folder):
            binds.append((folder, folder))
    binds += [(path, path) for path in SYSTEM_FILES if os.path.exists(path)]
    binds += [(folder, folder) for folder in interpreter_folders()]
    binds.append((guest_folder(), f"{GUEST_PARENT}/guest"))
    hidden = [
        path for folder, _ in binds if os.path.isdir(folder) for path in withheld_within(folder, withheld)
    ]
    return ContainerView(
        binds=tuple(binds),
        empty_folders=tuple(path for path in hidden if os.path.isdir(path)),
        empty_files=tuple(path for path in hidden if not os.path.isdir(path)),
        links=tuple(links),
        scratch=scratch_folder(),
    )


# How an engine is asked.


@dataclass(frozen=True)
class Surroundings:
    """What every engine needs to know; `folder` is a private one of the host, for as long as it is used."""

    folder: str
    view: ContainerView
    environment: dict[str, str]
    limits: Limits

    def root(self) -> str:
        """The container's root file system on the host."""
        return os.path.join(self.folder, "root")


class DockerLike:
    """Docker, or Podman with the same options; the engine's control group limits memory and processes."""

    def __init__(self, program: str, around: Surroundings) -> None:
        self._program = program
        self._around = around
        self._image: list[str] = []

    def prepare(self) -> None:
        """Podman takes a folder as the root; Docker takes only images, so the folder becomes one."""
        if shutil.which(self._program) is None:
            raise EngineError(f"{self._program} is not installed")
        root = self._around.root()
        if self._program == "podman":
            self._image = ["--rootfs", root]
            return
        archive = _output(["tar", "--create", "--directory", root, "."])
        name = _output([self._program, "import", "-"], archive).decode().strip()
        self._image = [name]

    def run(self, container: str, inner: list[str]) -> list[str]:
        """The command that runs `inner` in a new container, which is removed when it ends."""
        limits, view = self._around.limits, self._around.view
        memory = f"{limits.memory_mb + 2 * limits.scratch_mb}m"
        scratch = f"rw,nosuid,nodev,size={limits.scratch_mb}m,mode=1777"
        options = ["--rm", "--interactive", "--name", container, "--network", "none", "--read-only"]
        options += [
            "--cap-drop",
            "all",
            "--security-opt",
            "no-new-privileges",
            "--user",
            f"{NOBODY}:{NOBODY}",
        ]
        options += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes)]
        options += ["--ulimit", f"nofile={limits.open_files}:{limits.open_files}", "--ulimit", "core=0:0"]
        # Counted by user id, so of no use here; named because an engine may wish for more than it can have.
        options += ["--ulimit", f"nproc={_MOST_OF_A_USER}:{_MOST_OF_A_USER}"]
        options += ["--log-driver", "none", "--hostname", "sandbox", "--shm-size", f"{limits.scratch_mb}m"]
        options += ["--tmpfs", f"{view.scratch}:{scratch}", "--workdir", view.scratch]
        if self._program == "podman":
            options += ["--read-only-tmpfs=false"]
        for outside, inside in view.binds:
            options += ["--volume", f"{outside}:{inside}:ro"]
        for path in view.empty_folders:
            options += ["--tmpfs", f"{path}:ro,size=4k"]
        for path in view.empty_files:
            options += ["--volume", f"{os.devnull}:{path}:ro"]
        for name, value in self._around.environment.items():
            options += ["--env", f"{name}={value}"]
        return [self._program, "run", *options, *self._image, *inner]

    def remove(self, container: str) -> list[str]:
        """The command that ends a container by force, at once; Podman would wait for ten seconds first."""
        at_once = ["--time", "0"] if self._program == "podman" else []
        return [self._program, "rm", "--force", *at_once, container]


class Gvisor:
    """gVisor's `runsc`, used directly: model code talks to a kernel written in Go instead of the host's."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._global = ["runsc", "--root", os.path.join(around.folder, "state"), "--network", "none"]
        self._global += [] if os.getuid() == 0 else ["--rootless"]
        # Without a control group only each process has a limit, not all together.
        self._in_group = os.getuid() == 0 and os.access("/sys/fs/cgroup", os.W_OK)
        self._global += [] if self._in_group else ["--ignore-cgroups"]

    def prepare(self) -> None:
        """Nothing beyond the program itself."""
        if shutil.which("runsc") is None:
            raise EngineError("runsc is not installed")

    def run(self, container: str, inner: list[str]) -> list[str]:
        """The command that runs `inner` in a new container, whose settings are a bundle of its own."""
        bundle = Path(tempfile.mkdtemp(prefix=f"{container}-", dir=self._around.folder))
        (bundle / "config.json").write_text(json.dumps(self._settings(container, inner)), encoding="utf-8")
        return [*self._global, "run", "--bundle", str(bundle), container]

    def remove(self, container: str) -> list[str]:
        """The command that ends a container by force, at once."""
        return [*self._global, "delete", "--force", container]

    def _settings(self, container: str, inner: list[str]) -> dict[str, Any]:
        limits, view = self._around.limits, self._around.view
        size = f"size={limits.scratch_mb}m"
        mounts = [
            _mount("proc", "/proc"),
            _mount("tmpfs", "/dev"),
            _mount("tmpfs", "/dev/shm", size, "mode=1777"),
        ]
        mounts += [_mount("bind", inside, "ro", source=outside) for outside, inside in view.binds]
        mounts += [_mount("tmpfs", path, "ro") for path in view.empty_folders]
        mounts += [_mount("bind", path, "ro", source=os.devnull) for path in view.empty_files]
        mounts.append(_mount("tmpfs", view.scratch, size, "mode=1777"))
        linux: dict[str, Any] = {"namespaces": [{"type": kind} for kind in _NAMESPACES]}
        if self._in_group:
            memory = (limits.memory_mb + 2 * limits.scratch_mb + _GVISOR_MEGABYTES) * _MEGABYTE
            threads = limits.processes + _GVISOR_THREADS
            linux["cgroupsPath"] = f"/{container}"
            linux["resources"] = {"memory": {"limit": memory, "swap": memory}, "pids": {"limit": threads}}
        return {
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": NOBODY, "gid": NOBODY},
                "args": inner,
                "env": [f"{name}={value}" for name, value in self._around.environment.items()],
                "cwd": view.scratch,
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "root": {"path": self._around.root(), "readonly": True},
            "hostname": "sandbox",
            "mounts": mounts,
            "linux": linux,
        }


def engine_named(name: str, around: Surroundings) -> DockerLike | Gvisor:
    """The engine behind a backend's name."""
    return Gvisor(around) if name == "gvisor" else DockerLike(name, around)


def _mount(kind: str, place: str, *options: str, source: str | None = None) -> dict[str, Any]:
    return {
        "destination": place,
        "type": kind,
        "source": source or kind,
        "options": ["nosuid", "nodev", *options],
    }


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
        raise EngineError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise EngineError(
            (done.stderr.decode("utf-8", "replace").strip() or f"{command[0]} failed").splitlines()[-1]
        )
    return done.stdout
