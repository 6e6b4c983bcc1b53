"""A Parquet table with one tidy row per number measured; it is written as a whole, from what was stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError
from histobench.core.plain_file import check_plain

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
}
#: Those of a table of everything below a folder, which has the intervals of the numbers too.
WHOLE_COLUMNS: dict[str, str] = {
    **dict.fromkeys(("dataset", "encoder", "preset", "task", "setting", "metric"), "text"),
    "value": "number",
    "low": "number",
    "high": "number",
    **{name: COLUMNS[name] for name in ("n", "seed", "fingerprint", "date", "version")},
}


def write_rows(
    path: str | Path, rows: Sequence[dict[str, Any]], *, columns: Mapping[str, str] = COLUMNS
) -> None:
    """Write the table at `path`; it stays whole even if the process is killed meanwhile."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(
        [{name: row.get(name) for name in columns} for row in rows], schema=_schema(columns)
    )
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def has_columns(path: Path, columns: Mapping[str, str]) -> bool:
    """Whether there is a table at `path` that has exactly these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(check_plain(path)).names) == list(columns)
    except (pa.ArrowInvalid, OSError):
        return False


def read_rows(path: str | Path, *, columns: Mapping[str, str] = COLUMNS) -> list[dict[str, Any]]:
    """All rows of the table at `path`, of its columns these."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(check_plain(Path(path)), schema=_schema(columns), partitioning=None)
        return list(table.to_pylist())
    except (pa.ArrowInvalid, OSError) as error:
        raise HistobenchError(
            f"{path}: {error}; remove it and run again: it is made from the JSON files"
        ) from error


def _schema(columns: Mapping[str, str]) -> Any:
    import pyarrow as pa

    kinds = {"text": pa.string(), "number": pa.float64(), "integer": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
