"""The tidy tables of a results folder: views of its `*_complete_results.json` files, one row per metric.

Each folder that tasks were written to has a table of its own; at the top of a plan's results one table holds
everything below, with intervals. Nothing in histobench reads them: they cannot be counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from histobench.core.derived import derive, is_older
from histobench.core.errors import HistobenchError
from histobench.core.natural_order import natural_order
from histobench.core.reading import files_below
from histobench.core.tidy_store import WHOLE_COLUMNS, has_columns, write_rows
from histobench.roi.comparison.stored_intervals import shown_intervals
from histobench.roi.results.layout import COMPLETE, TaskFiles
from histobench.roi.results.reader import read_run, results_files
from histobench.roi.results.stored_run import StoredRun

log = logging.getLogger(__name__)

TIDY_FILE = "results.parquet"
#: What `table()` shows, and the first columns of the table of everything.
TABLE_COLUMNS = ("dataset", "encoder", "preset", "task", "setting", "metric", "value", "low", "high", "n")


def write_tidy_rows(results_dir: Path) -> None:
    """Write the `results.parquet` of this folder's own results, if it is not up to date.

    Where one of everything below the folder stands, it is brought up to date instead.
    """
    path = results_dir / TIDY_FILE
    if not is_older(path, _sources(results_dir)):
        return
    if has_columns(path, WHOLE_COLUMNS):
        write_whole_table(results_dir)
    else:
        derive(
            lambda: _sources(results_dir),
            lambda paths: write_rows(path, [row for source in paths for row in _of_file(source, _own_rows)]),
        )


def write_whole_table(results_dir: Path) -> Path:
    """Write `results.parquet` from all runs below a folder, with their intervals, and say where."""

    def sources() -> list[Path]:
        found = results_files(results_dir)
        intervals = (TaskFiles.beside(path).intervals for path in found)
        return [*found, *(path for path in intervals if path.exists())]

    def write(paths: Sequence[Path]) -> None:
        rows = [
            row for path in paths if path.name.endswith(COMPLETE) for row in _of_file(path, _with_intervals)
        ]
        write_rows(results_dir / TIDY_FILE, rows, columns=WHOLE_COLUMNS)

    derive(sources, write)
    return results_dir / TIDY_FILE


def result_rows(run: StoredRun) -> list[dict[str, Any]]:
    """One row per number of a run: the columns of `TABLE_COLUMNS`, with its 95 % interval."""
    intervals = shown_intervals(run)
    stored = intervals["metrics"]
    count = intervals.get("num_samples") or run.num_samples or len(run.predictions)
    return [
        {
            **{name: getattr(run.identity, name) for name in ("dataset", "encoder", "preset")},
            "task": run.task,
            "setting": run.setting,
            "metric": metric,
            "value": value,
            "low": stored.get(metric, {}).get("ci_lower"),
            "high": stored.get(metric, {}).get("ci_upper"),
            "n": count,
        }
        for metric, value in run.metrics.items()
    ]


def _sources(results_dir: Path) -> list[Path]:
    """The results of this folder itself; other runs below it have tables of their own."""
    found = [path.relative_to(results_dir) for path in files_below(results_dir, COMPLETE)]
    mine = (
        path
        for path in found
        if not path.name.startswith(".")
        and (len(path.parts) == 2 or (len(path.parts) == 3 and path.parts[1].startswith("way_")))
    )
    return [results_dir / path for path in sorted(mine, key=natural_order)]


def _of_file(path: Path, rows: Callable[[StoredRun], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    try:
        return rows(read_run(path))
    except HistobenchError as error:
        if isinstance(error.__cause__, OSError):  # the table would lack what is there
            raise
        # Another tool's file is no reason to fail after the work.
        log.warning("left out of %s: %s", TIDY_FILE, error)
        return []
    except (TypeError, ValueError, AttributeError) as error:  # values of other kinds than ours
        log.warning("left out of %s: %s (%s)", TIDY_FILE, path, error)
        return []


def _with_intervals(run: StoredRun) -> list[dict[str, Any]]:
    return [{**_made(run), **row} for row in result_rows(run)]


def _own_rows(run: StoredRun) -> list[dict[str, Any]]:
    known = {name: getattr(run.identity, name) for name in ("dataset", "encoder", "preset")}
    return [
        {
            **known,
            **_made(run),
            "task": run.task,
            "setting": run.setting,
            "metric": metric,
            "value": value,
            "n": run.num_samples,
        }
        for metric, value in run.metrics.items()
    ]


def _made(run: StoredRun) -> dict[str, Any]:
    given = {name: run.info.get(name) for name in ("date", "version")}
    told = {name: None if value is None else str(value) for name, value in given.items()}
    # Another tool's seed may be larger than a column holds.
    seed = run.identity.seed if abs(run.identity.seed) < 2**63 else None
    return {"seed": seed, "fingerprint": run.identity.fingerprint, **told}
