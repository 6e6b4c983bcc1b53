"""The one door for files that somebody names: plain ones of a bounded size, or an error that says what it is.

A pipe keeps whoever opens it waiting for ever, `/dev/zero` has no end, and a folder is no text. Each of them
is an `OSError` here, so that every message about a file that cannot be read tells of them in the same words.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
from pathlib import Path
from typing import Any

#: What nobody writes by hand: plans, class maps, prompts, prices, tables of checkpoints, settings.
HAND_WRITTEN = 16 << 20
#: Lists of images, tasks, episodes and predictions, which are held in memory as a whole.
LISTED = 4 << 30

#: What a gzip file may unpack to: text becomes ten or twenty times as long, hardly ever a hundred times.
_UNPACKED, _UNPACKED_AT_LEAST, _UNPACKED_TIMES = 2 << 30, 64 << 20, 100

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


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
                f"it unpacks to more than {self._limit:,} bytes; it is no such file",
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
        name = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "something else")
        is_folder = stat.S_ISDIR(found.st_mode)
        advice = "name a file in it" if is_folder else "save what it gives to a file, and name that"
        number = errno.EISDIR if is_folder else errno.EINVAL
        raise NotPlainError(number, f"it is {name}, not a plain file; {advice}", str(path))


def _refuse_larger(size: int, path: str | Path, limit: int) -> None:
    if size > limit:
        raise NotPlainError(
            errno.EFBIG, f"it has {size:,} bytes, and such a file may have {limit:,} at most", str(path)
        )


def is_no_folder(path: Path) -> bool:
    """Whether something is there that is to be read as a file, be it one or not: the door says which."""
    return path.exists() and not path.is_dir()
