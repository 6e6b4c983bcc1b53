"""Dataclasses of numbers and texts as JSON files, with what they were made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from histobench.core.files import read_note, write_text

T = TypeVar("T")


def write_record(path: Path, record: Any, *, about: Mapping[str, Any]) -> None:
    """Write a dataclass; `about` says in plain JSON values what it was made from, for `read_record`."""
    write_text(path, json.dumps({"about": about, "record": asdict(record)}))


def read_record(path: Path, kind: type[T], *, about: Mapping[str, Any]) -> T | None:
    """Return the record of a file; None where there is none, or not a sound one made from `about`."""
    note = read_note(path) or {}
    if json.dumps(note.get("about")) != json.dumps(about):
        return None
    try:
        record: T
        (record,) = _adapter(kind).validate_json(json.dumps([note.get("record")]))  # type: ignore[arg-type]
    except ValueError:  # pydantic's error is one
        return None
    return record


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # In a tuple: pydantic passes the settings of a plain type on to the dataclasses inside it.
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))
