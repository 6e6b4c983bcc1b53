"""A file of JSON lines that only grows: each line is on disk before the next thing happens."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import check_plain, read_plain


class LineJournal:
    """Appends whole lines; a last line that a kill has torn is cut off when the file is opened again.

    One process writes at a time: the file is locked as long as it is open.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                check_plain(self.path)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise HistobenchError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            self._claim()
            self.repaired = self._repair()
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add a line; it has reached the disk when this returns."""
        line = (json.dumps(record, default=str) + "\n").encode("ascii")
        with self._lock:
            start = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, line)
                os.fsync(self._descriptor)
            except OSError as error:
                os.ftruncate(self._descriptor, start)  # no half line may stay: the next would grow on it
                raise HistobenchError(f"cannot write {self.path}: {error.strerror}") from error

    def records(self) -> Iterator[dict[str, Any]]:
        """All lines, from the first."""
        for number, line in enumerate(read_plain(self.path).split(b"\n"), start=1):
            if line.strip():
                yield _record(self.path, number, line)

    def close(self) -> None:
        """Let another process write."""
        os.close(self._descriptor)

    def _claim(self) -> None:
        try:
            import fcntl
        except ImportError:  # no such lock on this platform: a single writer is assumed
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise HistobenchError(
                f"{self.path} is being written by another run; wait for it, or give another `output`"
            ) from error

    def _repair(self) -> bool:
        """Cut a torn last line off, or end a whole one; returns whether something was cut."""
        content = read_plain(self.path)
        if not content or content.endswith(b"\n"):
            return False
        start = content.rfind(b"\n") + 1
        try:
            parse_json(content[start:])
        except ValueError:
            os.ftruncate(self._descriptor, start)
            os.fsync(self._descriptor)
            return True
        _write_all(self._descriptor, b"\n")
        os.fsync(self._descriptor)
        return False


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise HistobenchError(f"{path}:{number}: not a JSON object ({error}); move the line away") from error
    if not isinstance(record, dict):
        raise HistobenchError(f"{path}:{number}: not a JSON object; move the line away")
    return record
