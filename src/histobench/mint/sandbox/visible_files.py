"""Which files a session sees: the running Python's, wherever it was installed, but none that hold answers."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from histobench.core.version import installed_entry_points

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/fonts", "/etc/mime.types")
#: The entry points of packages that bring tasks, and with them their references.
TASKS = "histobench.tasks"


def interpreter_folders() -> list[str]:
    """Folders outside the system's with this interpreter, its library and packages; no source tree."""
    kept: list[str] = []
    for path in sorted(set(_needed_folders()), key=len):
        inside = any(is_beneath(path, other) for other in (*kept, *SYSTEM_FOLDERS))
        if not inside and path != "/" and os.path.isdir(path):
            kept.append(path)
    return kept


def _needed_folders() -> list[str]:
    """Every folder that the running Python knows as its own, system ones included, also by its real name."""
    paths = sysconfig.get_paths()
    wanted = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    wanted += [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    link = Path(sys.executable)
    for _ in range(20):  # every symbolic link on the way to the real file
        wanted.append(str(link.parent))
        if not link.is_symlink():
            break
        link = Path(os.path.normpath(link.parent / os.readlink(link)))
    return wanted + [os.path.realpath(path) for path in wanted]


def guest_folder() -> str:
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


def is_beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def withheld_paths(more: Iterable[str | os.PathLike[str]] = ()) -> list[str]:
    """Real paths of files and folders that no session may read, wherever they are.

    This package and those of plug-ins come with tasks and their references. The working folder holds datasets
    and results; one that holds the interpreter itself cannot be withheld as a whole.
    """
    here = Path.cwd()
    wanted = [Path(__file__).parents[2], here, here / "data", *_plugin_places(), *map(Path, more)]
    real = {os.path.realpath(path) for path in wanted if path.exists()}
    needed = [os.path.realpath(folder) for folder in _needed_folders()]
    return sorted(path for path in real if not any(is_beneath(folder, path) for folder in needed))


def withheld_within(folder: str, withheld: Iterable[str]) -> list[str]:
    """The withheld paths as they appear beneath `folder`, the outermost only."""
    root = os.path.realpath(folder)
    found: list[str] = []
    for path in sorted(withheld, key=len):
        if is_beneath(path, root):
            inside = os.path.normpath(os.path.join(folder, os.path.relpath(path, root)))
            if not any(is_beneath(inside, outer) for outer in found):
                found.append(inside)
    return found


def readable_rest(folder: str, withheld: Iterable[str]) -> tuple[list[str], list[str]]:
    """What remains of `folder`: paths to be read with all that is in them, and folders to be listed only."""
    hidden = withheld_within(os.path.realpath(folder), withheld)
    if not hidden:
        return [folder], []
    read: list[str] = []
    listed: list[str] = []
    rest = [os.path.realpath(folder)]
    while rest:
        path = rest.pop()
        if path in hidden:
            continue
        if not any(is_beneath(inner, path) for inner in hidden):
            read.append(path)
            continue
        listed.append(path)
        # A link would open its target as a whole; what it leads to is readable by its own name or not at all.
        rest += [entry.path for entry in os.scandir(path) if not entry.is_symlink()]
    return read, listed


def _plugin_places() -> Iterator[Path]:
    for entry in installed_entry_points(TASKS):
        try:
            spec = find_spec(entry.module.partition(".")[0])
        except (ImportError, ValueError):  # an error where the plug-in is used; here it only has no place
            continue
        if spec is not None:
            folders = list(spec.submodule_search_locations or [])
            yield from map(Path, folders or ([spec.origin] if spec.origin else []))
