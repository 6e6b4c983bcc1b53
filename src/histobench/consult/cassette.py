"""Every answer of every tool, recorded once: runs need no pictures, no encoder and no device afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError
from histobench.core.plain_file import check_plain

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "cassette.parquet"
COLUMNS = ("key", "image", "encoder", "arm", "tool", "arguments", "answer")


@dataclass(frozen=True)
class Recorded:
    """One answer, and what it is the answer to. What is the same in every arm has no encoder and no arm."""

    image: str
    encoder: str
    arm: str
    tool: str
    arguments: str  # canonical JSON
    answer: str

    @property
    def key(self) -> str:
        """The content address."""
        return address(self.image, self.encoder, self.arm, self.tool, self.arguments)


def canonical(arguments: Mapping[str, Any]) -> str:
    """Arguments as the text that addresses are made of.

    >>> canonical({"n": 3})
    '{"n":3}'
    """
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def address(image: str, encoder: str, arm: str, tool: str, arguments: str) -> str:
    """The hash of everything that an answer depends on."""
    return hashlib.sha256(json.dumps([image, encoder, arm, tool, arguments]).encode()).hexdigest()


class Cassette:
    """Answers by their address."""

    def __init__(self, rows: Iterable[Recorded]) -> None:
        self.rows = tuple(rows)
        self._answers = {row.key: row.answer for row in self.rows}

    def answer(
        self, tool: str, arguments: Mapping[str, Any], *, image: str = "", encoder: str = "", arm: str = ""
    ) -> str:
        """The recorded answer; to ask for what was not recorded is no agent's fault."""
        key = address(image, encoder, arm, tool, canonical(arguments))
        try:
            return self._answers[key]
        except KeyError:
            what = f"{tool}({canonical(arguments)}) for image {image or 'any'} in arm {arm or 'any'}"
            raise HistobenchError(
                f"the cassette holds no answer of {what}; prepare the study again"
            ) from None


def write_cassette(path: Path, rows: Iterable[Recorded]) -> None:
    """As Parquet, sorted by address: the same answers give the same file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    unique = {row.key: row for row in rows}
    table = pa.table(
        {
            name: pa.array([getattr(unique[key], name) for key in sorted(unique)], pa.string())
            for name in COLUMNS
        }
    )
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_prepared(path: Path, what: str) -> pa.Table:
    """A table that `consult prepare` wrote; `what` it is called where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(check_plain(path))
    except (OSError, pa.ArrowException) as error:
        raise HistobenchError(
            f"cannot read the {what} {path}: {error}; run histobench consult prepare"
        ) from error


def read_cassette(path: Path) -> Cassette:
    """The answers of a file; one whose answers are not at their addresses was changed, and is refused."""
    table = read_prepared(path, "cassette")
    if tuple(table.column_names) != COLUMNS:
        raise HistobenchError(
            f"{path} has the columns {', '.join(table.column_names)}, not those of a cassette"
        )
    rows = [Recorded(**{name: row[name] for name in COLUMNS[1:]}) for row in table.to_pylist()]
    if [row.key for row in rows] != table["key"].to_pylist():
        raise HistobenchError(f"{path}: answers are not at their addresses; prepare the study again")
    return Cassette(rows)
