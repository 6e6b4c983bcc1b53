"""The folder of one cell: finished episodes, their cost, failures, and the journal."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, read_bytes, read_plain_text, write_json
from histobench.core.plain_data import parse_json, read_json
from histobench.mint.messages.parts import Image
from histobench.mint.messages.record import IMAGES
from histobench.mint.results.stored_episode import DETAILS, FAILURES, FILE, finished_in


class LineJournal:
    """Appends whole lines; a last line that a kill has torn is cut off when the file is opened again.

    One process writes at a time: the file is locked as long as it is open.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise HistobenchError(
                f"{self.path} is being written by another run; wait for it, or give another `results`"
            ) from error
        self._repair()

    def append(self, record: dict[str, Any]) -> None:
        """Add a line; it has reached the disk when this returns."""
        line = (json.dumps(record, default=str) + "\n").encode("ascii")
        with self._lock:
            start = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, line)
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, start)  # no half line may stay: the next would grow on it
                raise

    def close(self) -> None:
        os.close(self._descriptor)

    def _repair(self) -> None:
        content = read_bytes(self.path)
        if not content or content.endswith(b"\n"):
            return
        start = content.rfind(b"\n") + 1
        try:
            parse_json(content[start:])
            _write_all(self._descriptor, b"\n")
        except ValueError:
            os.ftruncate(self._descriptor, start)
        os.fsync(self._descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


#: One line for each process that has played episodes here: version, data, sandbox, prices.
RUNS = "runs.jsonl"
DATA = "data"


class CellStore:
    """`results.jsonl` in the published schema is the record of what is done; the other files stand beside it.

    Details are written before the result they belong to. After a kill there may be details without a result,
    which no one reads, but never a result without details.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._lock = threading.RLock()
        results = LineJournal(self.folder / FILE)
        self._journals = {FILE: results}
        self._record = dict(record)
        self._run = uuid.uuid4().hex[:12]
        try:
            self._check_settings(settings, record)
            self.finished = finished_in(self.folder / FILE)
        except BaseException:
            results.close()
            raise

    def add(self, episode: dict[str, Any], details: dict[str, Any], images: Iterable[Image] = ()) -> None:
        for image in images:
            path = self.folder / IMAGES / image.file_name
            if not path.exists():
                with atomic_path(path) as temporary:
                    temporary.write_bytes(image.data)
        with self._lock:
            if RUNS not in self._journals:  # which process plays here with what
                self._append(RUNS, {"run": self._run, "started": round(time.time(), 3), **self._record})
        self._append(DETAILS, {**details, "run": self._run})
        self._append(FILE, episode)

    def add_failure(self, failure: dict[str, Any]) -> None:
        self._append(FAILURES, failure)

    def describe(self, **facts: Any) -> None:
        self._record |= facts

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with self._lock:
            if name not in self._journals:
                self._journals[name] = LineJournal(self.folder / name)
        self._journals[name].append(record)

    def _check_settings(self, settings: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        path = self.folder / "settings.json"
        if not path.exists():
            write_json(path, dict(record))
            return
        before = read_json(read_plain_text(path), where=str(path))
        # Folders of earlier versions do not say which data they were made with.
        known = [name for name in settings if name != DATA or name in before]
        changed = [name for name in known if before.get(name) != settings[name]]
        if changed:
            said = ", ".join(f"{name} was {before.get(name)!r}, now {settings[name]!r}" for name in changed)
            raise HistobenchError(
                f"{self.folder} was made with other settings ({said}); give another `results`"
            )
