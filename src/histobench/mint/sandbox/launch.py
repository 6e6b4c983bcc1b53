"""How the zygote is started on each backend: its command line, its whole environment, its settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from histobench.mint.sandbox.bubblewrap import GUEST_PARENT, bubblewrap_command, scratch_folder
from histobench.mint.sandbox.limits import Limits
from histobench.mint.sandbox.visible_files import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    closed_ancestor,
    guest_folder,
    interpreter_folders,
    readable_rest,
)

_BOOT = "import sys; sys.path.insert(0, {parent!r}); from guest.{module} import main; del sys.path[0]; main()"
_DEVICES = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_KERNEL_FILES = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/version")


@dataclass(frozen=True)
class SessionSetup:
    """What every session of a pool starts with; `shell` is "ipython" or "plain"."""

    preload: tuple[str, ...]
    shell: str
    limits: Limits
    withheld: Sequence[str] = ()
    hash_seed: int = 0


def plan_launch(
    backend: str, setup: SessionSetup, *, descriptor: int, scratch: str | None
) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """Command, environment and settings of a zygote; `scratch` is for episodes without a tmpfs."""
    scratch = scratch or scratch_folder()
    config = session_config(setup, scratch)
    environment = guest_environment(scratch, setup.hash_seed)
    if backend == "bubblewrap":
        config["isolation"] = "namespaces"
        inner = [*guest_command("zygote", GUEST_PARENT), str(descriptor)]
        command = bubblewrap_command(inner, environment, withheld=setup.withheld)
    else:
        config["isolation"] = "landlock" if backend == "landlock" else "none"
        config["behind_closed_folder"] = any(closed_ancestor(folder) for folder in interpreter_folders())
        rests = [readable_rest(folder, setup.withheld) for folder in config["packages"]]
        config["readable"] = [path for read, _ in rests for path in read]
        config["readable"] += [*SYSTEM_FILES, *_DEVICES, *_KERNEL_FILES]
        config["listable"] = [path for _, listed in rests for path in listed]
        command = [*guest_command("zygote", str(Path(guest_folder()).parent)), str(descriptor)]
    return command, environment, config


def session_config(setup: SessionSetup, scratch: str) -> dict[str, Any]:
    return {
        "scratch_root": scratch,
        "packages": [*SYSTEM_FOLDERS, *interpreter_folders()],
        "preload": list(setup.preload),
        "shell": setup.shell,
        "limits": asdict(setup.limits),
    }


def guest_command(module: str, parent: str) -> list[str]:
    return [sys.executable, "-s", "-P", "-c", _BOOT.format(parent=parent, module=module)]


def guest_environment(scratch: str, hash_seed: int) -> dict[str, str]:
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
        # Without a network `!pip install` fails at once, instead of trying for minutes.
        "PIP_NO_INDEX": "1",
        "PIP_NO_INPUT": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
