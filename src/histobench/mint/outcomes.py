"""Outcomes of episodes, wherever they are: folders of runs, recordings, tables, logs of Inspect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from histobench.core.errors import needing
from histobench.mint.results.episode_outcome import FAILURES, EpisodeOutcome, counted, read_outcome_table
from histobench.mint.results.recording import holds_recordings, read_played
from histobench.mint.results.stored_episode import find_result_files, read_unfinished


def read_outcomes(path: str | Path) -> list[EpisodeOutcome]:
    return counted(read_all_outcomes(path), FAILURES)


def read_all_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """From an outcome table (.csv, .csv.gz), recordings, logs of Inspect (.eval) or a folder of runs."""
    path = Path(path)
    if path.name.endswith((".csv", ".csv.gz")):
        yield from read_outcome_table(path)
    elif logs := [path] if path.suffix == ".eval" else sorted(path.glob("*.eval")):
        for log in logs:
            yield from log_outcomes(log)
    else:
        for episode in read_played(path):
            yield episode.outcome
        if not holds_recordings(path):
            yield from read_unfinished(find_result_files(path))


def log_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    with needing(f"to read {path}: pip install 'histobench[inspect]'"):
        from histobench.mint.inspect import inspect_logs
    return inspect_logs.log_outcomes(path)
