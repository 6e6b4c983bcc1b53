"""Records that one process stores for another: one archive with a JSON text and its arrays.

The archive holds `record.json` and one `.npy` member for each array, so every array has its own type and
shape in the file. The text names the fields of each frozen dataclass; an array is `{"array": <number>}`.
A value that does not have the declared type of its field (pydantic, strict) makes the file count as absent. A
field that holds an array is declared with `ArrayOf`:

    Floats = Annotated[NDArray[np.float64], ArrayOf(np.float64)]
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from histobench.core.files import atomic_path, read_bytes, unreadable
from histobench.core.plain_data import parse_json

T = TypeVar("T")
_TEXT, _ABOUT = "record.json", "about.json"


class ArrayOf:
    """Marks a field of a record as an array of one dtype; other values are refused when a file is read."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """What pydantic asks of a marker: the check that replaces its own one of the type."""
        from pydantic_core import core_schema

        return core_schema.with_info_plain_validator_function(self._check)

    def _check(self, value: Any, info: Any) -> NDArray[Any]:
        match value:
            case {"array": int(number)} if len(value) == 1 and 0 <= number < len(info.context):
                array: NDArray[Any] = info.context[number]
            case _:
                raise ValueError(f"expected an array, found {type(value).__name__}")
        if array.dtype != self.dtype:
            raise ValueError(f"expected an array of {self.dtype}, found {array.dtype}")
        return array


def write_record(path: Path, record: Any, *, about: Mapping[str, Any]) -> None:
    """Write a dataclass; `about` says in plain JSON values what it was made from, for `read_record`."""
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_plain(record, arrays))
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, content in ((_ABOUT, json.dumps(about)), (_TEXT, text)):
            with archive.open(name, "w") as member:  # without a date: the same record is the same bytes
                member.write(content.encode("utf-8"))
        for number, array in enumerate(arrays):
            with archive.open(f"{number}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_record(path: Path, kind: type[T], *, about: Mapping[str, Any]) -> T | None:
    """Return the record of a file; None where there is none, or not a sound one made from `about`."""
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            made_from = parse_json(json.dumps(about))
            if archive.testzip() is not None or parse_json(archive.read(_ABOUT)) != made_from:
                return None
            text = archive.read(_TEXT)
            count = sum(name.endswith(".npy") for name in archive.namelist())
            arrays = [_array(archive, f"{number}.npy") for number in range(count)]
        record: T
        adapter = _adapter(kind)  # type: ignore[arg-type]
        (record,) = adapter.validate_json(b"[" + text + b"]", strict=True, context=arrays)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError):
        return None  # pydantic's error is a ValueError
    return record


def _plain(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item, arrays) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, arrays) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return {"array": len(arrays) - 1}
    return value.item() if isinstance(value, np.generic) else value


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # In a tuple: pydantic passes the settings of a plain type on to the dataclasses inside it.
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))
