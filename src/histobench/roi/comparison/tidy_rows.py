"""The tidy tables of a results folder: views of its `*_complete_results.json` files, one row per metric.

Each folder that tasks were written to has a table of its own; at the top of a plan's results one table holds
everything below. Nothing in histobench reads them: they cannot be counted twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, derive, files_below, read_bytes, regular
from histobench.core.text import natural_order
from histobench.core.version import __version__
from histobench.roi.comparison.stored_intervals import shown_intervals, write_default_intervals
from histobench.roi.encoders.own_name import UNCHECKED
from histobench.roi.results.layout import COMPLETE, TaskFiles
from histobench.roi.results.reader import read_run, results_files
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS

log = logging.getLogger(__name__)

TIDY_FILE = "results.parquet"
#: The key of the digest of what a table was made from, in its metadata.
SOURCES = "histobench_sources"
#: In the order of the file. `provenance` says what is special about the features; `low` and `high` are the
#: ends of the 95 % interval.
COLUMNS = (
    *("dataset", "encoder", "task", "setting", "preset", "metric", "value", "n", "seed", "fingerprint"),
    *("date", "version", "provenance", "low", "high"),
)
#: What `table()` shows, and the first columns of a table of everything below a folder.
TABLE_COLUMNS = ("dataset", "encoder", "preset", "task", "setting", "metric", "value", "low", "high", "n")
WHOLE_COLUMNS = (*TABLE_COLUMNS, "seed", "fingerprint", "date", "version", "provenance")


def write_rows(
    path: str | Path, rows: Sequence[dict[str, Any]], *, columns: Sequence[str] = COLUMNS, sources: str = ""
) -> None:
    """Write the table at `path`, with the digest of what it was made from; a kill leaves it whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {name: pa.float64() for name in ("value", "low", "high")} | {"n": pa.int64(), "seed": pa.int64()}
    arrays = [_array([row.get(name) for row in rows], kinds.get(name, pa.string())) for name in columns]
    table = pa.Table.from_arrays(arrays, names=list(columns))
    with atomic_path(path) as temporary:
        pq.write_table(table.replace_schema_metadata({SOURCES: sources} if sources else None), temporary)


def digest_of(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {hashlib.sha256(read_bytes(path)).hexdigest()}\n".encode())
    return digest.hexdigest()


def _schema(path: Path) -> tuple[list[str], str]:
    """The columns of the table at `path`, and what it was made from; nothing where there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_schema(regular(path))
    except (pa.ArrowInvalid, OSError):
        return [], ""
    return found.names, (found.metadata or {}).get(SOURCES.encode(), b"").decode()


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return list(pq.read_table(path, partitioning=None).to_pylist())


def _array(values: Sequence[Any], kind: Any) -> Any:
    """A column of a table. The conversion of pyarrow itself would import pandas, which is slow to load."""
    import pyarrow as pa

    present = np.packbits(np.array([value is not None for value in values], dtype=bool), bitorder="little")
    if kind == pa.string():
        texts = [(value or "").encode() for value in values]
        data: list[Any] = [np.cumsum([0, *map(len, texts)], dtype=np.int32), b"".join(texts)]
    else:
        data = [np.array([value or 0 for value in values], float if kind == pa.float64() else np.int64)]
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(each) for each in (present, *data)])


def write_tidy_rows(results_dir: Path) -> None:
    """Write the `results.parquet` of this folder's own results, if it is not up to date.

    Where one of everything below the folder stands, it is brought up to date instead.
    """
    path = results_dir / TIDY_FILE
    # The order of its columns tells the table of everything from that of one folder.
    if _schema(path)[0][:3] == list(WHOLE_COLUMNS[:3]):
        write_whole_table(results_dir)
        return

    def write(paths: Sequence[Path]) -> None:
        sources = digest_of(paths)
        if _schema(path)[1] != sources:
            write_rows(path, [row for each in paths for row in _of_file(each, _stored)], sources=sources)

    derive(lambda: _sources(results_dir), write)


def write_whole_table(results_dir: Path) -> Path:
    """Write `results.parquet` from all runs below a folder, with their intervals, and say where."""

    def sources() -> list[Path]:
        found = results_files(results_dir)
        intervals = (TaskFiles.beside(path).intervals for path in found)
        return [*found, *(path for path in intervals if path.exists())]

    def write(paths: Sequence[Path]) -> None:
        made_from = f"{__version__} {digest_of(paths)}"
        if _schema(results_dir / TIDY_FILE)[1] == made_from:
            return
        found = (path for path in paths if path.name.endswith(COMPLETE))
        rows = [row for path in found for row in _of_file(path, _with_intervals)]
        write_rows(results_dir / TIDY_FILE, rows, columns=WHOLE_COLUMNS, sources=made_from)

    derive(sources, write)
    return results_dir / TIDY_FILE


def result_rows(run: StoredRun) -> list[dict[str, Any]]:
    """One row per number of a run: the columns of `TABLE_COLUMNS`, with its 95 % interval."""
    intervals = shown_intervals(run)
    count = (
        intervals.get("num_samples")
        or run.num_samples
        or (len(run.predictions) if run.target == CLASS else None)
    )
    who = run.identity.dataset, run.identity.encoder, run.identity.preset, run.task, run.setting
    rows = []
    for metric, value in run.metrics.items():
        entry = intervals["metrics"].get(metric, {})
        row = (*who, metric, value, entry.get("ci_lower"), entry.get("ci_upper"), count)
        rows.append(dict(zip(TABLE_COLUMNS, row, strict=True)))
    return rows


def _sources(results_dir: Path) -> list[Path]:
    """The results of this folder itself; other runs below it have tables of their own."""
    mine = (
        path
        for path in [path.relative_to(results_dir) for path in files_below(results_dir, COMPLETE)]
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


def _with_intervals(run: StoredRun) -> list[dict[str, Any]]:
    return [{**_made(run), **row} for row in result_rows(run)]


def _stored(run: StoredRun) -> list[dict[str, Any]]:
    """As `_with_intervals`; the intervals are kept beside the run."""
    with suppress(HistobenchError):
        write_default_intervals(run)
    return _with_intervals(run)


def _made(run: StoredRun) -> dict[str, Any]:
    made = {name: run.info.get(name) for name in ("date", "version", "provenance")}
    texts = {name: None if value is None else str(value) for name, value in made.items()}
    notes = filter(None, [texts["provenance"], *(text for text in run.caveats if text == UNCHECKED)])
    # Another tool's seed may be larger than a column holds.
    seed = run.identity.seed if abs(run.identity.seed) < 2**63 else None
    provenance = "; ".join(notes) or None
    return {**texts, "seed": seed, "fingerprint": run.identity.fingerprint, "provenance": provenance}
