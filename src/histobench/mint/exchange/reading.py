"""Outcomes from wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.mint.replay.recording import SUFFIX, read_recordings
from histobench.mint.results.outcome import EpisodeOutcome, read_outcome_table
from histobench.mint.results.stored_episode import find_result_files, read_files

INSPECT_LOG = ".eval"


def read_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """From an outcome table (.csv, .csv.gz), recordings, a log of Inspect (.eval) or a folder of runs."""
    path = Path(path)
    if path.name.endswith((".csv", ".csv.gz")):
        yield from read_outcome_table(path)
    elif path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}"))):
        for recording in read_recordings(path):
            yield recording.outcome
    elif path.suffix == INSPECT_LOG:
        yield from _log_outcomes(path)
    else:
        for episode in read_files(find_result_files(path)):
            yield episode.outcome


def _log_outcomes(path: Path) -> Iterator[EpisodeOutcome]:
    try:
        from histobench.mint.inspect.log import log_outcomes
    except ImportError as error:
        raise HistobenchError(
            f"{path} is a log of Inspect; to read it, pip install 'histobench[inspect]'"
        ) from error
    return log_outcomes(path)
