"""A Parquet table with one tidy row per number measured; it is written as a whole, from what was stored."""

from __future__ import annotations

from collections.abc import Sequence
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


def write_rows(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the table at `path`; it stays whole even if the process is killed meanwhile."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(
        [{name: row.get(name) for name in COLUMNS} for row in rows], schema=_schema()
    )
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """All rows of the table at `path`."""
    return list(read_table(Path(path)).to_pylist())


def read_table(path: Path) -> Any:
    """The table at `path` as a pyarrow Table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(check_plain(path), schema=_schema(), partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise HistobenchError(
            f"{path}: {error}; remove it and run again: it is made from the JSON files"
        ) from error


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"text": pa.string(), "number": pa.float64(), "integer": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
