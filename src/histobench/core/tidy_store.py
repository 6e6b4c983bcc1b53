"""A Parquet table that grows by rows: one tidy row per number ever measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError

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


def append_rows(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add `rows` to the table at `path`, which stays whole even if the process is killed meanwhile."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows], schema=_schema())
    with _exclusive(path):
        table = pa.concat_tables([read_table(path), new]) if path.exists() else new
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


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"text": pa.string(), "number": pa.float64(), "integer": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold an advisory lock so that two runs into one folder do not drop each other's rows."""
    try:
        import fcntl
    except ImportError:  # no such lock on this platform: a single writer is assumed
        yield
        return
    with path.with_name(f".{path.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
