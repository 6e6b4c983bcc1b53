"""Outcomes from wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.mint.replay.recording import SUFFIX, read_recordings
from histobench.mint.results.outcome import EpisodeOutcome, read_outcome_table
from histobench.mint.results.stored_episode import find_result_files, read_episodes


def read_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """From an outcome table (.csv, .csv.gz), recordings (*.k5.jsonl.gz) or a folder of finished runs."""
    path = Path(path)
    if path.name.endswith((".csv", ".csv.gz")):
        yield from read_outcome_table(path)
    elif path.name.endswith(SUFFIX) or (path.is_dir() and any(path.glob(f"*.k*{SUFFIX}"))):
        for recording in read_recordings(path):
            yield recording.outcome
    else:
        for file in find_result_files(path):
            for episode in read_episodes(file):
                yield episode.outcome
