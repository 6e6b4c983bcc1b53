"""Files that are either whole or absent."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from histobench.core.errors import DiskFullError, HistobenchError


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success it is flushed to disk and renamed onto it.

    A reader never sees a half-written file, and an error leaves the old content as it was.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise _write_error(target, error) from error
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
        _flush_folder(target.parent)
    except OSError as error:
        raise _write_error(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(target: str | Path, text: str) -> None:
    """Write `text` to `target` atomically as UTF-8."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: str | Path, value: Any) -> None:
    """Write `value` to `target` atomically as readable JSON; a number that is none (NaN) becomes null.

    An object then says under `undefined_numbers` where that was and what stood there.
    """
    write_text(target, _as_json(value))


def create_json(target: str | Path, value: Any, *, lasting: bool = True) -> bool:
    """Write `value` to `target` unless it is there already; of several that try at once, one succeeds.

    What need not outlive a crash of the machine is not `lasting`, and is written sooner.
    """
    target = Path(target)
    mine = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    text = _as_json(value)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text(text, encoding="utf-8")
        if lasting:
            _flush(mine)
        if not _link(mine, target):
            return False
        if lasting:
            _flush_folder(target.parent)
    except OSError as error:
        raise _write_error(target, error) from error
    finally:
        with contextlib.suppress(OSError):  # where there is no folder there is no file
            mine.unlink()
    return True


def _link(mine: Path, target: Path) -> bool:
    """Give a file its name, unless another has it; either at once, on shared file systems too."""
    try:
        os.link(mine, target)
    except FileExistsError:
        return False
    except OSError as error:
        if target.exists():
            return False
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        os.replace(mine, target)  # no hard links here
    return True


def check_writable(folder: Path) -> None:
    """Raise an OSError unless files can be put into a folder, or into the nearest one above it."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    with tempfile.TemporaryFile(dir=existing):
        pass


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        value, undefined = without_nan(value)
        if not undefined:
            raise
        if isinstance(value, dict):
            value = {**value, "undefined_numbers": undefined}
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def without_nan(value: Any) -> tuple[Any, dict[str, str]]:
    """A value in which every number that is none is None, and where these were: path -> reason.

    >>> without_nan({"tau": float("nan"), "k": [1, float("inf")]})
    ({'tau': None, 'k': [1, None]}, {'tau': 'not defined (nan)', 'k.1': 'not defined (inf)'})
    """
    undefined: dict[str, str] = {}

    def plain(item: Any, where: tuple[str, ...]) -> Any:
        if isinstance(item, dict):
            return {key: plain(each, (*where, str(key))) for key, each in item.items()}
        if isinstance(item, list | tuple):
            return [plain(each, (*where, str(place))) for place, each in enumerate(item)]
        if isinstance(item, float) and not math.isfinite(item):
            undefined[".".join(where)] = f"not defined ({item})"
            return None
        return item

    return plain(value, ()), undefined


def _flush(path: Path) -> None:
    with path.open("rb+") as handle:
        os.fsync(handle.fileno())


def _flush_folder(folder: Path) -> None:
    # Not every file system lets a folder be opened; the rename itself has already happened.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _write_error(target: Path, error: OSError) -> HistobenchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"cannot write {target}: the disk is full; free some space and run again")
    return HistobenchError(f"cannot write {target}: {error.strerror or error}")
