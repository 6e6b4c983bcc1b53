"""The tidy table of a results folder: a view of its `*_complete_results.json` files, one row per metric."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histobench.core.derived import derive, is_older
from histobench.core.errors import HistobenchError
from histobench.core.natural_order import natural_order
from histobench.core.reading import files_below
from histobench.core.tidy_store import COLUMNS, write_rows
from histobench.roi.results.layout import COMPLETE
from histobench.roi.results.reader import read_run

log = logging.getLogger(__name__)

TIDY_FILE = "results.parquet"


def write_tidy_rows(results_dir: Path) -> None:
    """Write `results.parquet` from the stored results, if it is not up to date."""
    if is_older(results_dir / TIDY_FILE, _sources(results_dir)):
        derive(lambda: _sources(results_dir), lambda paths: _write(results_dir, paths))


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


def _write(results_dir: Path, paths: Sequence[Path]) -> None:
    write_rows(results_dir / TIDY_FILE, [row for path in paths for row in _rows(path)])


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        run = read_run(path)
    except HistobenchError as error:
        if isinstance(error.__cause__, OSError):  # the table would lack what is there
            raise
        # Another tool's file is no reason to fail after the work.
        log.warning("left out of %s: %s", TIDY_FILE, error)
        return []
    known = {name: getattr(run.identity, name) for name in COLUMNS if hasattr(run.identity, name)}
    told = {name: run.info.get(name) for name in ("date", "version")}
    return [
        {
            **known,
            **told,
            "task": run.task,
            "setting": run.setting,
            "metric": metric,
            "value": value,
            "n": run.num_samples,
        }
        for metric, value in run.metrics.items()
    ]
