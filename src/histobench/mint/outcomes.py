"""Outcomes of episodes, wherever they are: folders of runs, recordings, tables, logs of Inspect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.mint.results.episode_outcome import FAILURES, EpisodeOutcome, counted, read_outcome_table
from histobench.mint.results.reading import holds_recordings, read_played
from histobench.mint.results.stored_episode import find_result_files, read_unfinished

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
    elif path.suffix == INSPECT_LOG:
        yield from log_outcomes(path)
    else:
        for episode in read_played(path):
            yield episode.outcome
        if not holds_recordings(path):
            yield from read_unfinished(find_result_files(path))


def log_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """The samples of a log of Inspect, of this project or of any benchmark."""
    try:
        from histobench.mint.inspect import inspect_logs
    except ImportError as error:
        raise HistobenchError(
            f"{path} is a log of Inspect; to read it, pip install 'histobench[inspect]'"
        ) from error
    return inspect_logs.log_outcomes(path)
