"""Episodes and outcomes, wherever they are: folders of runs, recordings, tables, logs of Inspect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.mint.results.episode_outcome import FAILURES, EpisodeOutcome, counted, read_outcome_table
from histobench.mint.results.recording import SUFFIX, Recording, read_recordings
from histobench.mint.results.stored_episode import (
    StoredEpisode,
    find_result_files,
    read_files,
    read_unfinished,
)

INSPECT_LOG = ".eval"
#: A finished episode of a run or of a recording.
Episode = StoredEpisode | Recording


def read_outcomes(path: str | Path) -> list[EpisodeOutcome]:
    """The episodes that count, as `read_all_outcomes` finds them; those of other outcomes are left out."""
    return counted(read_all_outcomes(path), FAILURES)


def read_all_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """From an outcome table (.csv, .csv.gz), recordings, a log of Inspect (.eval) or a folder of runs.

    Episodes that could not be played to their end (provider failure, checker error) are among them.
    """
    path = Path(path)
    if path.name.endswith((".csv", ".csv.gz")):
        yield from read_outcome_table(path)
    elif path.suffix == INSPECT_LOG:
        yield from log_outcomes(path)
    else:
        for episode in read_played(path):
            yield episode.outcome
        if not _holds_recordings(path):
            yield from read_unfinished(find_result_files(path))


def read_played(path: str | Path) -> Iterator[Episode]:
    """Every finished episode of a folder of runs, or of recordings."""
    path = Path(path)
    return read_recordings(path) if _holds_recordings(path) else read_files(find_result_files(path))


def log_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """The samples of a log of Inspect, of this project or of any benchmark."""
    try:
        from histobench.mint.inspect import inspect_logs
    except ImportError as error:
        raise HistobenchError(
            f"{path} is a log of Inspect; to read it, pip install 'histobench[inspect]'"
        ) from error
    return inspect_logs.log_outcomes(path)


def _holds_recordings(path: Path) -> bool:
    return path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}")))
