"""Replayed episodes on disk, so that a long replay goes on where it stopped."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain
from histobench.core.plain_data import parse_json
from histobench.mint.replay.execution import Replayed
from histobench.mint.replay.recording import Recording


class Journal:
    """One line for each replayed episode; without a path nothing is kept."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path else None
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        if self._path and self._path.exists():
            try:
                lines = read_plain(self._path).split(b"\n")
            except OSError as error:
                raise HistobenchError(f"cannot read the journal {self._path}: {error}") from error
            for line in lines:
                try:
                    record = parse_json(line)
                    self._known[record["episode"]] = record
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue  # the last line of a killed run

    def find(self, recording: Recording) -> Replayed | None:
        """The stored replay of an episode."""
        record = self._known.get(recording.name)
        if record is None:
            return None
        return Replayed(
            recording,
            success=record["success"],
            observations=record["observations"],
            exact=record["exact"],
            same=record["same"],
            alike=record["alike"],
            differences=tuple((turn, then, now) for turn, then, now in record["differences"]),
        )

    def add(self, replayed: Replayed) -> None:
        """Keep one, at once."""
        if self._path is None:
            return
        line = json.dumps(
            {
                "episode": replayed.recording.name,
                "success": replayed.success,
                "recorded_success": replayed.recording.success,
                "observations": replayed.observations,
                "exact": replayed.exact,
                "same": replayed.same,
                "alike": replayed.alike,
                "differences": replayed.differences,
            }
        )
        try:
            with self._lock, self._path.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}" if file.tell() else line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise HistobenchError(f"cannot write the journal {self._path}: {error}") from error
