"""Outcomes from wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.mint.results.episode_outcome import FAILURES, EpisodeOutcome, counted, read_outcome_table
from histobench.mint.results.recording import SUFFIX, read_recordings
from histobench.mint.results.stored_episode import find_result_files, read_files, read_unfinished

INSPECT_LOG = ".eval"


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
    elif path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}"))):
        for recording in read_recordings(path):
            yield recording.outcome
    elif path.suffix == INSPECT_LOG:
        yield from _log_outcomes(path)
    else:
        files = find_result_files(path)
        for episode in read_files(files):
            yield episode.outcome
        yield from read_unfinished(files)


def _log_outcomes(path: Path) -> Iterator[EpisodeOutcome]:
    try:
        from histobench.mint.exchange.inspect_logs import log_outcomes
    except ImportError as error:
        raise HistobenchError(
            f"{path} is a log of Inspect; to read it, pip install 'histobench[inspect]'"
        ) from error
    return log_outcomes(path)
