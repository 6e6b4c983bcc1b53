"""The names by which images are known in feature files and results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath, PureWindowsPath


def image_names(written: Sequence[str]) -> list[str]:
    """A name for each listed path: the file name, or the path as written when file names collide.

    One rule for the whole dataset: if any two different files share a file name, all names are paths, so
    that a name always leads back to one file.

    >>> image_names(["a/1.png", "b/2.png"])
    ['1.png', '2.png']
    >>> image_names(["a/1.png", "b/1.png", "b/2.png"])
    ['a/1.png', 'b/1.png', 'b/2.png']
    """
    owner: dict[str, str] = {}
    names = [_file_name(path) for path in written]
    for name, path in zip(names, written, strict=True):
        if owner.setdefault(name, path) != path:
            return list(written)
    return names


def _file_name(path: str) -> str:
    # A path written on Windows keeps its backslashes in the CSV.
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name
