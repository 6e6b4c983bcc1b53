"""Which folders the running Python needs, wherever it was installed."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from pathlib import Path

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/mime.types",
)


def interpreter_folders() -> list[str]:
    """Folders outside the system ones that hold this interpreter, its library and its installed packages.

    The folder of an editable install is left out on purpose: packages, never a source tree with its data.
    """
    kept: list[str] = []
    for path in sorted(set(needed_folders()), key=len):
        inside = any(is_beneath(path, other) for other in (*kept, *SYSTEM_FOLDERS))
        if not inside and path != "/" and os.path.isdir(path):
            kept.append(path)
    return kept


def needed_folders() -> list[str]:
    """Every folder that the running Python knows as its own, system ones included, also by its real name."""
    paths = sysconfig.get_paths()
    wanted = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    wanted += [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    wanted += [str(path.parent) for path in _links(Path(sys.executable))]
    return wanted + [os.path.realpath(path) for path in wanted]


def guest_folder() -> str:
    """Where the code that runs inside the sandbox lies."""
    return str(Path(__file__).resolve().parent / "guest")


def ancestors(path: str) -> list[str]:
    """The folders above `path`, from the top, without the root.

    >>> ancestors("/a/b/c")
    ['/a', '/a/b']
    """
    return [str(parent) for parent in reversed(Path(path).parents)][1:]


def closed_ancestor(path: str) -> str | None:
    """The first folder above `path` that other users cannot enter, if any."""
    return next((folder for folder in ancestors(path) if not os.stat(folder).st_mode & stat.S_IXOTH), None)


def _links(path: Path) -> list[Path]:
    """`path` and every symbolic link on the way to the real file."""
    chain = [path]
    while path.is_symlink() and len(chain) < 20:
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        chain.append(path)
    return chain


def is_beneath(path: str, folder: str) -> bool:
    """Whether `path` is the folder or lies in it; both are normal paths."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
