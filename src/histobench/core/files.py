"""Read and write files: regular ones, written whole or not at all, on shared disks too."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import math
import os
import shutil
import stat
import tarfile
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from histobench.core.errors import DiskFullError, HistobenchError, InvalidParameterError
from histobench.core.plain_data import parse_json


def read_unpacked(path: str | Path) -> bytes:
    """Return the content of a file; one whose name ends with `.gz` is unpacked."""
    data = read_bytes(path)
    try:
        return gzip.decompress(data) if str(path).endswith(".gz") else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise HistobenchError(f"{path} is damaged: {error}") from error


def read_plain_text(path: str | Path, *, encoding: str = "utf-8") -> str:
    """Return the content as text, unpacked as by `read_unpacked`; every line ends with a line feed."""
    try:
        return io.TextIOWrapper(io.BytesIO(read_unpacked(path)), encoding=encoding).read()
    except UnicodeDecodeError as error:
        raise InvalidParameterError(f"{path} is not UTF-8 text: {error.reason}") from error


def unpack_tar(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    """Unpack the regular files of a TAR below `folder`; links are not made.

    By hand: the Python of Debian 12 has no `filter="data"`.
    """
    for member in tar:
        tar.members.clear()  # type: ignore[attr-defined]  # a million of them would fill the memory
        data = tar.extractfile(member) if member.isreg() else None
        if data is not None:
            path = (folder / member.name).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise HistobenchError(f"{name}: {member.name!r} leaves the folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as copy:
                shutil.copyfileobj(data, copy)


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success it is flushed to disk and renamed onto it.

    A reader never sees a half-written file, and an error leaves the old content as it was. The folder is not
    flushed: where the machine crashes, files of the last seconds may be missing, and are made again.
    """
    target = Path(target)
    try:
        patiently(lambda: target.parent.mkdir(parents=True, exist_ok=True))
        handle, name = patiently(
            lambda: tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        )
        os.close(handle)
    except OSError as error:
        raise _write_error(target, error) from error
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        patiently(lambda: os.replace(temporary, target))
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
        patiently(lambda: target.parent.mkdir(parents=True, exist_ok=True))
        patiently(lambda: mine.write_text(text, encoding="utf-8"))
        if lasting:
            _flush(mine)
        if not patiently(lambda: _link(mine, target)):
            return False
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
    except OSError as error:
        # NFS repeats a request whose reply was lost, and reports that the name it has just given exists. The
        # number of names tells which of the two has it.
        if mine.stat().st_nlink == 2:
            return True
        if isinstance(error, FileExistsError) or target.exists():
            return False
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        os.replace(mine, target)  # no hard links here
    return True


def check_writable(folder: Path, name: str) -> Path:
    """Return the folder if files can be written to it, or to the nearest one above it, before long work."""
    try:
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=existing):
            return folder
    except OSError as error:
        raise InvalidParameterError(
            f"{name}: cannot write to {str(folder)[:300]}: {error.strerror or error}"
        ) from None


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        value, undefined = without_nan(value)
        if not undefined:
            raise
        return _as_json({**value, "undefined_numbers": undefined} if isinstance(value, dict) else value)


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


def _write_error(target: Path, error: OSError) -> HistobenchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"cannot write {target}: the disk is full; free some space and run again")
    return HistobenchError(f"cannot write {target}: {error.strerror or error}")


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


#: Seconds for which this process waits for a shared disk: 0, in workers of a cluster `WORKER_PATIENCE`.
WORKER_PATIENCE = 60.0
_patience = 0.0


def set_patience(seconds: float) -> None:
    """Let this process wait so long for files of other machines, and for a disk that is read-only."""
    global _patience
    _patience = seconds


def patience() -> float:
    """Return the seconds for which this process waits for a shared disk."""
    return _patience


def patiently(action: Callable[[], T], *, announced: bool = False) -> T:
    """Return what `action` gives, tried again where an error may pass; the last error is raised as it is.

    That a file is missing passes if it was `announced`: some disks show the files of other machines late.
    """
    passing = PASSING | ({errno.EROFS} if _patience else set()) | ({errno.ENOENT} if announced else set())
    end = time.monotonic() + _patience
    for pause in chain(PAUSES, repeat(1.0)):
        try:
            return action()
        except OSError as error:
            if error.errno not in passing:
                raise
        time.sleep(pause)
        if pause == 1.0 and time.monotonic() > end:
            break
    return action()


def await_file(path: str | Path) -> None:
    """Wait for a file that another process has written, as long as `patience` says; nothing is raised."""
    if _patience:
        with contextlib.suppress(OSError):
            patiently(lambda: os.stat(path), announced=True)


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file; an OSError that is left is not one that passed by itself."""
    return patiently(lambda: regular(path).read_bytes())


def regular(path: str | Path) -> Path:
    """Return the path, unless a pipe or a device is there, which a reader could wait for forever."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # who reads it says so
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    return Path(path)


def read_json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of every line; a last line that a kill has torn is left out."""
    lines = read_unpacked(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise HistobenchError(f"{path}:{number}: not valid JSON ({error}); remove the line") from error
        yield number, value


def read_note(path: str | Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none, or where it is no JSON object.

    A file that is there and cannot be read is an error: to go on as if it were not would undo what it says.
    """
    try:
        content = parse_json(read_bytes(path).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def names_in(folder: Path, ending: str = "") -> list[str]:
    """The names of files in a folder that end so, sorted, as `files_below`; made for very many of them."""
    return sorted(name for name in _listing(folder, lambda: os.listdir(folder)) if name.endswith(ending))


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

    return _listing(folder, walk)


def _listing(folder: Path, look: Callable[[], list[T]]) -> list[T]:
    try:
        return patiently(look)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _raise(error: OSError) -> None:
    raise error


#: Rounds after which a view is left to the process that still writes.
ROUNDS = 50


def derive(sources: Callable[[], Sequence[Path]], write: Callable[[Sequence[Path]], None]) -> None:
    """Have a view written from its sources, again as long as sources came or changed meanwhile.

    So of several processes that add a source and then derive, the one that writes last has seen all of them.
    """
    for _ in range(ROUNDS):
        found = list(sources())
        before = _state(found)
        write(found)
        if _state(list(sources())) == before:
            return


def _state(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    state = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            state.append((str(path), found.st_mtime_ns, found.st_size))
    return state
