"""What lies among the interpreter's files but holds answers: tasks of packages, a project's data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from histobench.core.version import installed_entry_points
from histobench.mint.sandbox.interpreter import is_beneath, needed_folders

_DATA = "data"
#: The entry points of packages that bring tasks, and with them their references.
TASKS = "histobench.tasks"


def withheld_paths(more: Iterable[str | os.PathLike[str]] = ()) -> list[str]:
    """Real paths of files and folders that no session may read, wherever they lie.

    This package and those of plug-ins come with tasks and their references. The working folder holds datasets
    and results; one in which the interpreter itself lies cannot be withheld as a whole.
    """
    here = Path.cwd()
    wanted = [Path(__file__).parents[2], here, here / _DATA, *_plugin_places(), *map(Path, more)]
    real = {os.path.realpath(path) for path in wanted if path.exists()}
    needed = [os.path.realpath(folder) for folder in needed_folders()]
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
