"""The folder of one cell: finished episodes, their cost, failures, and the journal."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, check_plain, read_plain, read_plain_text, write_json
from histobench.core.plain_data import parse_json
from histobench.mint.messages.parts import Image
from histobench.mint.messages.record import IMAGES
from histobench.mint.results.stored_episode import DETAILS, FAILURES, FILE

# A file of JSON lines that only grows: each line is on disk before the next thing happens.


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
        raise HistobenchError(f"{path}:{number}: not a JSON object ({error}); remove the line") from error
    if not isinstance(record, dict):
        raise HistobenchError(f"{path}:{number}: not a JSON object; remove the line")
    return record


SETTINGS = "settings.json"
#: One line for each process that has played episodes here: version, data, sandbox, prices.
RUNS = "runs.jsonl"
#: The setting that holds the checksum of the tasks.
DATA = "data"


class CellStore:
    """`results.jsonl` in the published schema is the record of what is done; the other files stand beside it.

    Details are written before the result they belong to. After a kill there may be details without a result,
    which no one reads, but never a result without details.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._results = LineJournal(self.folder / FILE)
        self._details: LineJournal | None = None
        self._failures: LineJournal | None = None
        self._record = dict(record)
        self._run = uuid.uuid4().hex[:12]
        self._began = False
        try:
            self._check_settings(settings, record)
            self.finished = self._finished()
        except BaseException:
            self._results.close()
            raise

    @property
    def repaired(self) -> bool:
        """Whether a torn line was cut off when the folder was opened."""
        return self._results.repaired

    def add(self, episode: dict[str, Any], details: dict[str, Any], images: Iterable[Image] = ()) -> None:
        """Keep a finished episode, at once; its pictures first, each in a file that its content names."""
        for image in images:
            path = self.folder / IMAGES / image.file_name
            if not path.exists():
                with atomic_path(path) as temporary:
                    temporary.write_bytes(image.data)
        with self._lock:
            if self._details is None:
                self._details = LineJournal(self.folder / DETAILS)
            self._begin()
        self._details.append({**details, "run": self._run})
        self._results.append(episode)

    def add_failure(self, failure: dict[str, Any]) -> None:
        """Keep a note of an episode that could not be played to its end through no fault of the model."""
        with self._lock:
            if self._failures is None:
                self._failures = LineJournal(self.folder / FAILURES)
        self._failures.append(failure)

    def describe(self, **facts: Any) -> None:
        """What else is known of the process that plays here; kept in `runs.jsonl` with its first episode."""
        self._record |= facts

    def _begin(self) -> None:
        """Note once which process plays here with what; each episode's details name it by `run`."""
        if not self._began:
            journal = LineJournal(self.folder / RUNS)
            journal.append({"run": self._run, "started": round(time.time(), 3), **self._record})
            journal.close()
            self._began = True

    def close(self) -> None:
        """Let another run write here."""
        for journal in (self._results, self._details, self._failures):
            if journal is not None:
                journal.close()

    def _finished(self) -> dict[str, bool]:
        """Task id -> success of every episode on disk."""
        finished: dict[str, bool] = {}
        for record in self._results.records():
            try:
                task_id, success = str(record["task"]["task_id"]), bool(record["state"]["success"])
            except (KeyError, TypeError) as error:
                raise HistobenchError(
                    f"{self._results.path} contains a line that is not an episode ({error!r})"
                ) from error
            if task_id in finished:
                raise HistobenchError(f"{self._results.path} holds the task {task_id} twice; remove one line")
            finished[task_id] = success
        return finished

    def _check_settings(self, settings: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        path = self.folder / SETTINGS
        if not path.exists():
            write_json(path, dict(record))
            return
        try:
            before = parse_json(read_plain_text(path))
        except (OSError, ValueError) as error:
            raise HistobenchError(f"cannot read {path}: {error}") from error
        # Folders of earlier versions do not say which data they were made with.
        known = [name for name in settings if name != DATA or name in before]
        changed = [name for name in known if before.get(name) != settings[name]]
        if changed:
            said = ", ".join(f"{name} was {before.get(name)!r}, now {settings[name]!r}" for name in changed)
            raise HistobenchError(
                f"{self.folder} was made with other settings ({said}); give another `output`"
            )
