"""The one door for files that somebody names: plain ones of a bounded size, or an error that says what it is.

A pipe keeps whoever opens it waiting for ever, `/dev/zero` has no end, and a folder is no text. Each of them
is an `OSError` here, so that every message about a file that cannot be read tells of them in the same words.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import math
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from histobench.core.errors import DiskFullError, HistobenchError
from histobench.core.plain_data import parse_json

#: What nobody writes by hand: plans, class maps, prompts, prices, tables of checkpoints, settings.
HAND_WRITTEN = 16 << 20
#: A note that a process of ours has written: a claim, the output of a unit, what was spent.
NOTED = 256 << 20
#: Lists of images, tasks, episodes and predictions, which are held in memory as a whole.
LISTED = 4 << 30

#: What a gzip file may unpack to: text becomes ten or twenty times as long, hardly ever a hundred times.
_UNPACKED, _UNPACKED_AT_LEAST, _UNPACKED_TIMES = 2 << 30, 64 << 20, 100

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotPlainError(OSError):
    """There is something at the path, but no regular file, or one that is far too large."""

    def __str__(self) -> str:
        return str(self.strerror)


def check_plain(path: str | Path, *, limit: int | None = None) -> Path:
    """The path, if a plain file of at most `limit` bytes is there: for libraries that open it themselves."""
    found = os.stat(path)
    _refuse_others(found, path)
    if limit is not None:
        _refuse_larger(found.st_size, path, limit)
    return Path(path)


def plain_descriptor(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, as `opener` of `open`: it never waits for somebody at the other end."""
    # A device may act on being opened; a pipe that takes the file's place meanwhile does not make us wait.
    _refuse_others(os.stat(path), path)
    return _opened(path, flags)[0]


def _opened(path: str | Path, flags: int) -> tuple[int, os.stat_result]:
    # Without the last, Windows changes line ends.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        _refuse_others(found, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def open_plain(path: str | Path) -> io.BufferedReader:
    """A regular file, opened for reading bytes."""
    return open(path, "rb", opener=plain_descriptor)


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, up to a bound: a few bytes of it can stand for gigabytes."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._packed = open_plain(path)
        self._content = gzip.GzipFile(fileobj=self._packed)
        self._read = 0
        size = os.fstat(self._packed.fileno()).st_size
        self._limit = min(_UNPACKED, _UNPACKED_AT_LEAST + _UNPACKED_TIMES * size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._content.read(len(buffer))
        buffer[: len(data)] = data
        self._read += len(data)
        if self._read > self._limit:
            raise NotPlainError(
                errno.EFBIG,
                f"it unpacks to more than {self._limit:,} bytes; it is not a valid file of its kind",
                str(self._path),
            )
        return len(data)

    def close(self) -> None:
        self._packed.close()
        super().close()


def open_unpacked(path: str | Path) -> io.BufferedReader:
    """As `open_plain`; what is in a file whose name ends with `.gz` comes unpacked."""
    return io.BufferedReader(_Unpacked(path), 1 << 20) if str(path).endswith(".gz") else open_plain(path)


def read_plain(path: str | Path, *, limit: int = LISTED) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    _refuse_others(os.stat(path), path)
    return read_own(path, limit=limit)


def read_own(path: str | Path, *, limit: int = LISTED) -> bytes:
    """The same of a file that no user has named, so that there is no device; such are read by the 100,000."""
    descriptor, found = _opened(path, os.O_RDONLY)
    try:
        size = found.st_size
        _refuse_larger(size, path, limit)
        # No more memory than the file needs: `read` sets aside whatever it is asked for. A file may have
        # grown meanwhile, and those of `/proc` do not say how large they are.
        content = os.read(descriptor, size + 1)
        while len(content) != size and len(content) <= limit and (more := os.read(descriptor, 1 << 20)):
            content += more
    finally:
        os.close(descriptor)
    _refuse_larger(len(content), path, limit)
    return content


def read_plain_text(path: str | Path, *, limit: int = LISTED, encoding: str = "utf-8") -> str:
    """The same as text; as `Path.read_text` does, every line ends with a line feed."""
    return io.StringIO(read_plain(path, limit=limit).decode(encoding), newline=None).read()


def _refuse_others(found: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        name = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        is_folder = stat.S_ISDIR(found.st_mode)
        advice = "name a file in it" if is_folder else "save what it gives to a file, and name that"
        number = errno.EISDIR if is_folder else errno.EINVAL
        raise NotPlainError(number, f"it is {name}, not a plain file; {advice}", str(path))


def _refuse_larger(size: int, path: str | Path, limit: int) -> None:
    if size > limit:
        raise NotPlainError(errno.EFBIG, f"file too large: {size:,} bytes (limit {limit:,})", str(path))


def is_no_folder(path: Path) -> bool:
    """Whether something is there that is to be read as a file, be it one or not: the door says which."""
    return path.exists() and not path.is_dir()


# Files that are either whole or absent.


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success it is flushed to disk and renamed onto it.

    A reader never sees a half-written file, and an error leaves the old content as it was.
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
        patiently(lambda: target.parent.mkdir(parents=True, exist_ok=True))
        patiently(lambda: mine.write_text(text, encoding="utf-8"))
        if lasting:
            _flush(mine)
        if not patiently(lambda: _link(mine, target)):
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


def _flush_folder(folder: Path) -> None:
    # Not every file system lets a folder be opened; the rename itself has already happened.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_error(target: Path, error: OSError) -> HistobenchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"cannot write {target}: the disk is full; free some space and run again")
    return HistobenchError(f"cannot write {target}: {error.strerror or error}")


# Reads from disks that other machines write to: what passes is tried again, and is never taken for
# damage.

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
    """The content of a file; an OSError that is left is not one that passed by itself."""
    return patiently(lambda: read_own(path))


def read_note(path: str | Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none, or where it is no JSON object.

    A file that is there and cannot be read is an error: to go on as if it were not would undo what it says.
    """
    try:
        content = parse_json(patiently(lambda: read_own(path, limit=NOTED)).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def names_in(folder: Path, ending: str) -> list[str]:
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
    except OSError as error:
        raise unreadable(folder, error) from error


def _raise(error: OSError) -> None:
    raise error


def unreadable(path: str | Path, error: OSError) -> HistobenchError:
    """The line for a file that could not be read and may well be sound."""
    return HistobenchError(
        f"cannot read {path}: {error.strerror or error}; the file was not changed; run again"
    )


# Files that are views: made from other files that are each written once, and never changed in place.

#: Rounds after which a view is left to whoever is still writing.
ROUNDS = 50


def derive(sources: Callable[[], Sequence[Path]], write: Callable[[Sequence[Path]], None]) -> None:
    """Have a view written from its sources, again as long as sources came or changed meanwhile.

    So of several processes that add a source and then derive, whoever writes last has seen all of them.
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
