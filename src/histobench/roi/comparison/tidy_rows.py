"""The tidy tables of a results folder: views of its `*_complete_results.json` files, one row per metric.

Each folder that tasks were written to has a table of its own; at the top of a plan's results one table holds
everything below, with intervals. Nothing in histobench reads them: they cannot be counted twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
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

# A Parquet table with one tidy row per number measured; it is written as a whole, from what was stored.

#: The key of the digest of what a table was made from, in its metadata.
SOURCES = "histobench_sources"
#: Column -> kind; the order is the order in the file.
COLUMNS: dict[str, str] = {
    "dataset": "text",
    "encoder": "text",
    "task": "text",
    "setting": "text",
    "preset": "text",
    "metric": "text",
    "value": "number",
    "n": "integer",
    "seed": "integer",
    "fingerprint": "text",
    "date": "text",
    "version": "text",
    "provenance": "text",  # what is special about the features: computed elsewhere, not checked
    "low": "number",  # the 95 % interval
    "high": "number",
}
#: Those of a table of everything below a folder.
WHOLE_COLUMNS: dict[str, str] = {
    **dict.fromkeys(("dataset", "encoder", "preset", "task", "setting", "metric"), "text"),
    "value": "number",
    "low": "number",
    "high": "number",
    **{name: COLUMNS[name] for name in ("n", "seed", "fingerprint", "date", "version", "provenance")},
}


def write_rows(
    path: str | Path,
    rows: Sequence[dict[str, Any]],
    *,
    columns: Mapping[str, str] = COLUMNS,
    sources: str = "",
) -> None:
    """Write the table at `path`, with the digest of what it was made from; a kill leaves it whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(columns)
    arrays = [_array([row.get(each.name) for row in rows], each.type) for each in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    with atomic_path(path) as temporary:
        pq.write_table(table.replace_schema_metadata({SOURCES: sources} if sources else None), temporary)


def is_made_from(path: Path, sources: str) -> bool:
    """Return whether the table at `path` was made from files with this digest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return (pq.read_schema(regular(path)).metadata or {}).get(SOURCES.encode()) == sources.encode()
    except (pa.ArrowInvalid, OSError):
        return False


def digest_of(paths: Sequence[Path]) -> str:
    """Return the digest of files: which there are, and what is in them."""
    digest = hashlib.sha256()
    for path in paths:
        content = hashlib.sha256(read_bytes(path)).hexdigest()
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()


def is_whole(path: Path) -> bool:
    """Whether there is a table of everything below a folder at `path`, perhaps of an older version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # The order of its columns tells it from the table of one folder.
        return list(pq.read_schema(regular(path)).names[:3]) == list(WHOLE_COLUMNS)[:3]
    except (pa.ArrowInvalid, OSError):
        return False


def read_rows(path: str | Path, *, columns: Mapping[str, str] = COLUMNS) -> list[dict[str, Any]]:
    """All rows of the table at `path`, of its columns these."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(regular(path), schema=_schema(columns), partitioning=None)
        return list(table.to_pylist())
    except (pa.ArrowInvalid, OSError) as error:
        raise HistobenchError(
            f"{path}: {error}; remove it and run again: it is made from the JSON files"
        ) from error


def _schema(columns: Mapping[str, str]) -> Any:
    import pyarrow as pa

    kinds = {"text": pa.string(), "number": pa.float64(), "integer": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])


def _array(values: Sequence[Any], kind: Any) -> Any:
    """A column of a table. The conversion of pyarrow itself would import pandas, which is slow to load."""
    import pyarrow as pa

    present = np.packbits(np.array([value is not None for value in values], dtype=bool), bitorder="little")
    if kind == pa.string():
        texts = [(value or "").encode() for value in values]
        data: list[Any] = [np.cumsum([0, *map(len, texts)], dtype=np.int32), b"".join(texts)]
    else:
        data = [np.array([value or 0 for value in values], dtype=kind.to_pandas_dtype())]
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(each) for each in (present, *data)])


log = logging.getLogger(__name__)

TIDY_FILE = "results.parquet"
#: What `table()` shows, and the first columns of the table of everything.
TABLE_COLUMNS = ("dataset", "encoder", "preset", "task", "setting", "metric", "value", "low", "high", "n")


def write_tidy_rows(results_dir: Path) -> None:
    """Write the `results.parquet` of this folder's own results, if it is not up to date.

    Where one of everything below the folder stands, it is brought up to date instead.
    """
    path = results_dir / TIDY_FILE
    if is_whole(path):
        write_whole_table(results_dir)
        return

    def write(paths: Sequence[Path]) -> None:
        sources = digest_of(paths)
        if not is_made_from(path, sources):
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
        if is_made_from(results_dir / TIDY_FILE, made_from):
            return
        rows = [
            row for path in paths if path.name.endswith(COMPLETE) for row in _of_file(path, _with_intervals)
        ]
        write_rows(results_dir / TIDY_FILE, rows, columns=WHOLE_COLUMNS, sources=made_from)

    derive(sources, write)
    return results_dir / TIDY_FILE


def result_rows(run: StoredRun) -> list[dict[str, Any]]:
    """One row per number of a run: the columns of `TABLE_COLUMNS`, with its 95 % interval."""
    intervals = shown_intervals(run)
    stored = intervals["metrics"]
    count = (
        intervals.get("num_samples")
        or run.num_samples
        or (len(run.predictions) if run.target == CLASS else None)
    )
    return [
        {
            **row,
            "low": stored.get(row["metric"], {}).get("ci_lower"),
            "high": stored.get(row["metric"], {}).get("ci_upper"),
            "n": count,
        }
        for row in _numbers(run)
    ]


def _numbers(run: StoredRun) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(run.identity, name) for name in ("dataset", "encoder", "preset")},
            "task": run.task,
            "setting": run.setting,
            "metric": metric,
            "value": value,
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


def _stored(run: StoredRun) -> list[dict[str, Any]]:
    """As `_with_intervals`; the intervals are kept beside the run, so that they are computed once."""
    with suppress(HistobenchError):
        write_default_intervals(run)
    return _with_intervals(run)


def _made(run: StoredRun) -> dict[str, Any]:
    given = {name: run.info.get(name) for name in ("date", "version")}
    as_texts = {name: None if value is None else str(value) for name, value in given.items()}
    # Another tool's seed may be larger than a column holds.
    seed = run.identity.seed if abs(run.identity.seed) < 2**63 else None
    made = run.info.get("provenance")
    notes = [*([str(made)] if made else []), *(text for text in run.caveats if text == UNCHECKED)]
    provenance = "; ".join(notes) or None
    return {"seed": seed, "fingerprint": run.identity.fingerprint, **as_texts, "provenance": provenance}
