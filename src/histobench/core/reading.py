"""Reads from disks that other machines write to: what passes is tried again, and is never taken for damage.

On a shared file system a handle goes stale, a process runs out of descriptors, a server is away for a moment.
None of that says anything about the file. Only its content does, and only once it has been read.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import read_own

#: Errors that say nothing about the file itself.
PASSING = frozenset(
    getattr(errno, name)
    for name in (
        *("ESTALE", "EMFILE", "ENFILE", "EIO", "EAGAIN", "EINTR", "EBUSY"),
        *("ETIMEDOUT", "ENOLCK", "ENOMEM", "EREMOTEIO", "ENOTCONN", "ECONNRESET"),
    )
    if hasattr(errno, name)  # not every platform has all of them
)
#: Seconds before each further attempt.
PAUSES = (0.02, 0.1, 0.5)

T = TypeVar("T")


def patiently(read: Callable[[], T]) -> T:
    """What `read` gives, tried a few times where an error may pass; the last error is raised as it is."""
    for pause in PAUSES:
        try:
            return read()
        except OSError as error:
            if error.errno not in PASSING:
                raise
        time.sleep(pause)
    return read()


def read_bytes(path: str | Path) -> bytes:
    """The content of a file; an OSError that is left is not one that passed by itself."""
    return patiently(lambda: read_own(path))


def read_note(path: str | Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none, or where it is no JSON object.

    A file that is there and cannot be read is an error: to go on as if it were not would undo what it says.
    """
    try:
        content = parse_json(read_bytes(path).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def names_in(folder: Path, ending: str) -> list[str]:
    """The names of files in a folder that end so, sorted, as `files_below`; made for very many of them."""
    try:
        return sorted(name for name in patiently(lambda: os.listdir(folder)) if name.endswith(ending))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def files_below(folder: Path, ending: str, *, deep: bool = True) -> list[Path]:
    """The files below a folder whose names end so, sorted; none where there is no folder.

    A folder that cannot be listed is an error: what is made of half a listing would pass for the whole.
    """

    def walk() -> list[Path]:
        found: list[Path] = []
        for place, folders, names in os.walk(folder, onerror=_raise, followlinks=False):
            found += [Path(place, name) for name in names if name.endswith(ending)]
            if not deep:
                folders.clear()
        return sorted(found)

    try:
        return patiently(walk)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def _raise(error: OSError) -> None:
    raise error


def unreadable(path: str | Path, error: OSError) -> HistobenchError:
    """The line for a file that could not be read and may well be sound."""
    return HistobenchError(f"cannot read {path}: {error.strerror or error}; it was left as it is; run again")
