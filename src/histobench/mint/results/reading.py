"""Episodes that were played, wherever they are: folders of runs or recordings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.mint.results.recording import SUFFIX, Recording, read_recordings
from histobench.mint.results.stored_episode import StoredEpisode, find_result_files, read_files

#: A finished episode of a run or of a recording.
Episode = StoredEpisode | Recording


def read_played(path: str | Path) -> Iterator[Episode]:
    """Every finished episode of a folder of runs, or of recordings."""
    path = Path(path)
    return read_recordings(path) if holds_recordings(path) else read_files(find_result_files(path))


def holds_recordings(path: Path) -> bool:
    """Whether a file or folder has recordings; else it has runs."""
    return path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}")))
