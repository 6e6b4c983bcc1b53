"""The command line that puts the zygote into bubblewrap."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from histobench.mint.sandbox.guest.landlock import REFER_VERSION, landlock_version
from histobench.mint.sandbox.visible_files import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    ancestors,
    closed_ancestor,
    guest_folder,
    interpreter_folders,
    withheld_within,
)

NOBODY = 65534
GUEST_PARENT = "/sandbox"
_DEVICES = ("null", "full", "random", "urandom")
# Run by root between two bubblewraps: from here on nobody has any privilege to lose. When memory runs out the
# sandbox goes first; set by root, nobody can set it back.
_BECOME_NOBODY = f"""
import os, sys
try:
    with open("/proc/self/oom_score_adj", "w") as handle:
        handle.write("900")
except OSError:
    pass
os.setgroups([])
os.setresgid(*[{NOBODY}] * 3)
os.setresuid(*[{NOBODY}] * 3)
os.execv(sys.argv[1], sys.argv[1:])
"""


def bubblewrap_path() -> str | None:
    return shutil.which("bwrap")


def scratch_folder() -> str:
    """The episode's private writable folder: /tmp, unless mounting over it would hide the interpreter."""
    return "/scratch" if any(path.startswith("/tmp/") for path in interpreter_folders()) else "/tmp"


def bubblewrap_command(
    inner: list[str], environment: dict[str, str], *, withheld: Sequence[str] = ()
) -> list[str]:
    """`inner` as user nobody in namespaces of its own, seeing the system and this interpreter, read-only.

    What is `withheld` appears empty.

    Started by root, the command first drops to nobody: only then are process limits enforced. So that nobody
    can reach an interpreter under a folder that is closed to it, such as /root, a first bubblewrap puts an
    empty folder in its place, with the interpreter bound inside.
    """
    program = bubblewrap_path() or "bwrap"
    variables = [word for name, value in environment.items() for word in ("--setenv", name, value)]
    options = [*_namespace_options(), *_file_options(withheld), "--clearenv", *variables]
    command = [program, *options, "--", *inner]
    if os.getuid() != 0:
        return command
    python = os.path.realpath(sys.executable)
    return [
        *[program, "--die-with-parent", "--dev-bind", "/", "/", *_openings(), "--"],
        *[python, "-I", "-S", "-c", _BECOME_NOBODY, *command],
    ]


def _namespace_options() -> list[str]:
    options = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"]
    # The zygote is process 1: when it ends, so does everything it started. It needs one capability, inside
    # its own user namespace, to give each episode further namespaces; an episode drops it.
    return [*options, "--as-pid-1", "--die-with-parent", "--new-session", "--cap-add", "CAP_SYS_ADMIN"]


def _file_options(withheld: Sequence[str]) -> list[str]:
    options = []
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            options += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            options += ["--ro-bind", folder, folder]
    for path in SYSTEM_FILES:
        options += ["--ro-bind-try", path, path]
    # Device nodes one by one: --dev would add terminals and a second user namespace.
    # Shared mappings of /dev/zero are memory that no limit reaches: Landlock refuses them or it is not there.
    for name in (*_DEVICES, "zero") if landlock_version() >= REFER_VERSION else _DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    options += ["--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/proc/self/fd/0", "/dev/stdin"]
    options += ["--symlink", "/proc/self/fd/1", "/dev/stdout", "--symlink", "/proc/self/fd/2", "/dev/stderr"]
    options += ["--dir", "/dev/shm", "--proc", "/proc", "--tmpfs", "/tmp", "--dir", "/var", "--dir", "/run"]
    options += ["--symlink", "/tmp", "/var/tmp"]
    if scratch_folder() != "/tmp":
        options += ["--tmpfs", scratch_folder()]
    made: set[str] = set()
    for folder in interpreter_folders():
        for parent in ancestors(folder):
            if parent not in made:
                options += ["--dir", parent]
                made.add(parent)
        options += ["--ro-bind", folder, folder]
    for folder in (*SYSTEM_FOLDERS, *interpreter_folders()):
        for path in () if os.path.islink(folder) else withheld_within(folder, withheld):
            if os.path.isdir(path):
                options += ["--tmpfs", path, "--remount-ro", path]
            else:
                options += ["--ro-bind", os.devnull, path]
    options += ["--dir", GUEST_PARENT, "--ro-bind", guest_folder(), f"{GUEST_PARENT}/guest"]
    if scratch_folder() != "/tmp":
        # An episode mounts a scratch folder of its own over this one, but /tmp is the same for all.
        options += ["--remount-ro", "/tmp"]
    return [*options, "--chdir", scratch_folder(), "--remount-ro", "/"]


def _openings() -> list[str]:
    """Options that make every needed folder reachable for nobody."""
    options: list[str] = []
    closed: list[str] = []
    needed = [*interpreter_folders(), guest_folder(), os.path.dirname(bubblewrap_path() or "/usr/bin/bwrap")]
    for folder in needed:
        shut = closed_ancestor(folder)
        if shut is None:
            continue
        if shut not in closed:
            closed.append(shut)
            options += ["--perms", "0755", "--tmpfs", shut]
        for parent in ancestors(folder):
            if parent.startswith(shut + "/"):
                options += ["--perms", "0755", "--dir", parent]
        options += ["--ro-bind", folder, folder]
    return options
