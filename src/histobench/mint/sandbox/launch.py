"""How the zygote is started on each backend: its command line, its whole environment, its settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.mint.sandbox.bubblewrap import GUEST_PARENT, bubblewrap_command, scratch_folder
from histobench.mint.sandbox.interpreter import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    closed_ancestor,
    guest_folder,
    interpreter_folders,
)
from histobench.mint.sandbox.withheld import readable_rest

_BOOT = "import sys; sys.path.insert(0, {parent!r}); from guest.zygote import main; del sys.path[0]; main()"
_DEVICES = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_KERNEL_FILES = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/version")


@dataclass(frozen=True)
class Launch:
    """Everything needed to start a zygote."""

    command: list[str]
    environment: dict[str, str]
    config: dict[str, Any]


def plan_launch(
    backend: str, *, descriptor: int, scratch: str | None, hash_seed: int, withheld: Sequence[str] = ()
) -> Launch:
    """The launch on `backend`; `scratch` holds the files of episodes that have no tmpfs of their own."""
    packages = [*SYSTEM_FOLDERS, *interpreter_folders()]
    scratch = scratch or scratch_folder()
    config: dict[str, Any] = {"scratch_root": scratch, "packages": packages}
    environment = guest_environment(scratch, hash_seed)
    if backend == "bubblewrap":
        config["isolation"] = "namespaces"
        command = bubblewrap_command(
            _zygote_command(GUEST_PARENT, descriptor), environment, withheld=withheld
        )
    else:
        config["isolation"] = "landlock" if backend == "landlock" else "none"
        config["behind_closed_folder"] = any(closed_ancestor(folder) for folder in interpreter_folders())
        rests = [readable_rest(folder, withheld) for folder in packages]
        config["readable"] = [path for read, _ in rests for path in read]
        config["readable"] += [*SYSTEM_FILES, *_DEVICES, *_KERNEL_FILES]
        config["listable"] = [path for _, listed in rests for path in listed]
        command = _zygote_command(str(Path(guest_folder()).parent), descriptor)
    return Launch(command, environment, config)


def needs_scratch(backend: str) -> bool:
    """Whether episodes' files must lie in a folder of the host."""
    return backend != "bubblewrap"


def _zygote_command(parent: str, descriptor: int) -> list[str]:
    return [sys.executable, "-s", "-P", "-c", _BOOT.format(parent=parent), str(descriptor)]


def guest_environment(scratch: str, hash_seed: int) -> dict[str, str]:
    """The whole environment of model code; nothing of the user's own."""
    return {
        # `!python` and `!pip` are those of the session.
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin")),
        "HOME": scratch,
        "TMPDIR": scratch,
        "IPYTHONDIR": f"{scratch}/.ipython",
        "MPLCONFIGDIR": f"{scratch}/.matplotlib",
        "MPLBACKEND": "Agg",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "USER": "nobody",
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Without a network `!pip install` is told so at once, instead of trying for minutes.
        "PIP_NO_INDEX": "1",
        "PIP_NO_INPUT": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
