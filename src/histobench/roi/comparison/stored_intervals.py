"""Intervals for a whole results folder: one file beside each task, a summary at the top."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from histobench.core.atomic import write_json
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.default_interval_files import default_intervals, write_default_intervals
from histobench.roi.comparison.run_intervals import BootstrapSettings, run_intervals
from histobench.roi.results.interval_files import existing_intervals, predictions_digest
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun

SUMMARY = "bootstrap_ci_summary.json"


@dataclass(frozen=True)
class StoredIntervals:
    """The intervals of one run and how they came about."""

    run: StoredRun
    path: Path
    content: dict[str, Any] | None  # None where the run cannot be resampled
    skipped: str | None = None  # why nothing was computed
    failure: str | None = None


def bootstrap_runs(
    runs: list[StoredRun], settings: BootstrapSettings, *, force: bool = False
) -> Iterator[StoredIntervals]:
    """Write and yield the bootstrap intervals of each run; those of the same predictions are kept.

    Beside them the default intervals are written (`default_interval_files`).

    A run that cannot be read or resampled says so in `failure` and does not stop the others.
    """
    for run in runs:
        files = TaskFiles.beside(run.path)
        digest = predictions_digest(files)
        try:
            write_default_intervals(run, digest, force=force)
        except HistobenchError as error:
            yield StoredIntervals(run, files.bootstrap, None, failure=_at(run, error))
            continue
        existing = None if force else existing_intervals(files, digest)
        if existing is not None:
            yield StoredIntervals(run, files.bootstrap, existing, _why_skipped(existing, settings))
            continue
        try:
            content = run_intervals(run, settings)
        except HistobenchError as error:
            yield StoredIntervals(run, files.bootstrap, None, failure=_at(run, error))
            continue
        content["predictions_sha256"] = digest
        write_json(files.bootstrap, content)
        yield StoredIntervals(run, files.bootstrap, content)


def _at(run: StoredRun, error: HistobenchError) -> str:
    where = "" if str(run.path.parent) in str(error) else f"{run.path}: "
    return f"{where}{error}"


def stored_default_intervals(run: StoredRun) -> dict[str, Any] | None:
    """The content of a run's `*_intervals.json`; None where it is not there or of other predictions."""
    files = TaskFiles.beside(run.path)
    return default_intervals(run, predictions_digest(files)) if files.intervals.exists() else None


def write_summary(results_dir: Path, intervals: list[StoredIntervals]) -> Path:
    """Write `bootstrap_ci_summary.json`: value and bounds of every metric of every run."""
    path = results_dir / SUMMARY
    rows = [_summary_row(results_dir, item.path, item.content) for item in intervals if item.content]
    failures = [
        {"file": item.run.path.relative_to(results_dir).as_posix(), "reason": item.failure}
        for item in intervals
        if item.failure
    ]
    write_json(path, {"runs": rows, "without_intervals": failures})
    return path


def _summary_row(results_dir: Path, path: Path, content: dict[str, Any]) -> dict[str, Any]:
    kept = ("dataset", "encoder", "task_name", "setting", "preset", "n_bootstrap", "random_state", "method")
    row = {name: content.get(name) for name in (*kept, "resampled", "num_samples", "num_groups")}
    row["file"] = path.relative_to(results_dir).as_posix()
    row["metrics"] = {
        name: {key: entry.get(key) for key in ("value", "ci_lower", "ci_upper", "reason")}
        for name, entry in content["metrics"].items()
    }
    return row


def _why_skipped(existing: dict[str, Any], settings: BootstrapSettings) -> str:
    other = [
        f"{name} {existing.get(name)}"
        for name, value in asdict(settings).items()
        if existing.get(name) != value
    ]
    if other:
        return f"intervals exist with {', '.join(other)}; `force` computes them again"
    return "the same intervals exist already"
