"""A Parquet table that grows by rows: one tidy row per number measured.

A number is known by what it was measured on: measured again, it takes the place of the old one. So rows can
be handed in twice, by a run that goes on or by two runs at once, and are there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError
from histobench.core.file_lock import exclusive

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


#: What a number is known by; the other columns are what was found, and when.
KEY = tuple(name for name in COLUMNS if name not in ("value", "n", "date"))


def append_rows(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add `rows` to the table at `path`, which stays whole even if the process is killed meanwhile.

    A row takes the place of an earlier one with the same `KEY`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows], schema=_schema())
    with exclusive(path.with_name(f".{path.name}.lock")):
        table = new
        if path.exists():
            old = read_table(path)
            fresh = set(_keys(new))
            kept = [key not in fresh for key in _keys(old)]
            table = pa.concat_tables([old.filter(pa.array(kept, pa.bool_())), new])
        with atomic_path(path) as temporary:
            pq.write_table(table, temporary)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """All rows of the table at `path`, oldest first."""
    return list(read_table(Path(path)).to_pylist())


def read_table(path: Path) -> Any:
    """The table at `path` as a pyarrow Table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path, schema=_schema(), partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise HistobenchError(
            f"{path}: {error}; move it away to start a new table (the JSON files keep the numbers)"
        ) from error


def _keys(table: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in KEY), strict=True))


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"text": pa.string(), "number": pa.float64(), "integer": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
